// What each colour mode says, and in which colours: two themes, told apart by colour-blind readers, red for what is wrong.
import { CROSSES, LOST, OVER, type Cluster, type Holder } from "./model";

export type Mode = "occupancy" | "queue" | "workload" | "age" | "problem";
export const MODES: { mode: Mode; label: string; says: string }[] = [
  { mode: "occupancy", label: "Occupancy", says: "used, promised, free, out" },
  { mode: "queue", label: "Queue", says: "whose queue" },
  { mode: "workload", label: "Workload", says: "who" },
  { mode: "age", label: "Age", says: "admitted how long ago" },
  { mode: "problem", label: "Problems", says: "what is wrong" },
];

export interface Theme {
  dark: boolean;
  paper: string;
  ink: string;
  muted: string;
  faint: string;
  frames: string[];
  lines: string[];
  free: string;
  used: string;
  back: string;
  out: string;
  outLine: string;
  wrong: string;
  focus: string;
  ages: string[];
  kinds: string[];
  other: string;
}

export const LIGHT: Theme = {
  dark: false,
  paper: "#fcfcfb",
  ink: "#1b2127",
  muted: "#59636e",
  faint: "#cfd5db",
  frames: ["#eff1f3", "#f7f8f9", "#fcfcfb"],
  lines: ["#c3cad1", "#dce1e5", "#e6eaed"],
  free: "#dde4ea",
  used: "#2c6e9e",
  back: "#c9d1d8",
  out: "#e9e6e0",
  outLine: "#a9a396",
  wrong: "#c4231b",
  focus: "#0b57d0",
  ages: ["#1f8a70", "#5a9e4b", "#b59a1f", "#b9772a", "#8a5a7d"],
  kinds: ["#2c6e9e", "#d08a1d", "#3b8f6b", "#a05a9c", "#7a6a4f", "#4f7fd0", "#b5643c", "#6f8f2f", "#5f6b7a", "#2f9aa0"],
  other: "#9aa4ae",
};

export const DARK: Theme = {
  dark: true,
  paper: "#12161a",
  ink: "#e8ebee",
  muted: "#a0abb5",
  faint: "#39424b",
  frames: ["#1b2127", "#171c21", "#12161a"],
  lines: ["#3d4751", "#2b333b", "#252c33"],
  free: "#2c353e",
  used: "#58a6d9",
  back: "#39434d",
  out: "#2a2722",
  outLine: "#6d6658",
  wrong: "#ff6a5e",
  focus: "#8ab4f8",
  ages: ["#4cc2a3", "#86c670", "#dcc552", "#e0a05a", "#c08fb4"],
  kinds: ["#58a6d9", "#e5ab4e", "#63bf97", "#c98ac5", "#b3a27f", "#8aaef0", "#dd936e", "#a3c25f", "#97a5b5", "#5cc8cd"],
  other: "#66717c",
};

export const AGES: { upTo: number; label: string }[] = [
  { upTo: 3600, label: "under an hour" },
  { upTo: 6 * 3600, label: "under 6 hours" },
  { upTo: 86400, label: "under a day" },
  { upTo: 7 * 86400, label: "under a week" },
  { upTo: Infinity, label: "longer" },
];

export const WRONG: { bit: number; label: string }[] = [
  { bit: LOST, label: "held, though not ready" },
  { bit: OVER, label: "more held than there is" },
  { bit: CROSSES, label: "a pod across sockets without need" },
];

/** Which colour stands for each queue: in the order of their names, so that neighbours in the legend differ. */
export function queuesOf(cluster: Cluster): string[] {
  const found = new Set<string>();
  for (const one of cluster.holders.values()) found.add(queueOf(one));
  return [...found].sort((a, b) => (a === "" ? 1 : b === "" ? -1 : a < b ? -1 : 1));
}

export function queueOf(one: Holder): string {
  return one.clusterQueue || (one.queue ? `${one.namespace}/${one.queue}` : "");
}

/** Marks beside the colours, so that no two are told apart by colour alone. 0: none. */
export const TEXTURES = 6;

/** Which mark goes with a colour; who has the colour of another, ten places on, has another mark. */
export function textureOf(place: number, colours: number): number {
  return (place + Math.floor(place / colours)) % TEXTURES;
}

export interface Paint {
  colour: string;
  texture: number;
}

export function paintOf(mode: Mode, theme: Theme, one: Holder | undefined, queues: Map<string, number>, shades: Map<number, number>, now: number): Paint {
  const plain = (colour: string): Paint => ({ colour, texture: 0 });
  if (mode === "occupancy") return plain(theme.used);
  if (mode === "problem") return plain(theme.back);
  if (!one) return plain(theme.other);
  if (mode === "queue") {
    const name = queueOf(one);
    return name === "" ? plain(theme.other) : kindOf(theme, queues.get(name) ?? 0);
  }
  if (mode === "workload") return one.workload ? kindOf(theme, shades.get(one.number) ?? 0) : plain(theme.other);
  if (!one.admitted) return plain(theme.other);
  const at = AGES.findIndex((each) => now - one.admitted < each.upTo), age = at < 0 ? AGES.length - 1 : at;
  return { colour: theme.ages[age]!, texture: age };
}

/** Of so many queues or workloads, one. */
export function kindOf(theme: Theme, place: number): Paint {
  return { colour: theme.kinds[place % theme.kinds.length]!, texture: textureOf(place, theme.kinds.length) };
}
