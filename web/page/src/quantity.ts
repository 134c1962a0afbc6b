// Quantities as Kubernetes writes them, as numbers.
const FACTORS: Record<string, number> = {
  m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

/** 0 for what is no quantity. */
export function amountOf(text: string): number {
  const found = /^([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)([a-zA-Z]{0,2})$/.exec(text.trim());
  const factor = found ? FACTORS[found[2]!] : undefined;
  return found && factor !== undefined ? Number(found[1]) * factor || 0 : 0;
}
