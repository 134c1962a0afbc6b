// Devices of claims on a host, by NUMA zone where their drivers tell it: which pod has each, and which are free.
import type { JSX } from "preact";
import type { Theme } from "./colours";

export interface ClaimedDevice {
  driver: string;
  pool: string;
  name: string;
  zones: number[];
  state: "free" | "held" | "shared" | "blocked" | "gone";
  taint: string;
  pods: number[];
  claims: string[];
  others: boolean;
}

export interface DeviceGroup {
  zones: string;
  title: string;
  devices: ClaimedDevice[];
}

/** Those of one zone, driver and pool together: zones in order, those without one last. A pool called like its host goes unsaid. */
export function grouped(host: string, devices: ClaimedDevice[]): DeviceGroup[] {
  const groups = new Map<string, DeviceGroup & { at: number }>();
  for (const one of devices) {
    const title = one.pool === host ? one.driver : `${one.driver}/${one.pool}`;
    const zones = one.zones.length ? `Zone ${one.zones.join(", ")}` : "No zone told", key = `${zones} ${title}`;
    const group = groups.get(key) ?? { zones, title, devices: [], at: one.zones[0] ?? Infinity };
    group.devices.push(one);
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => (a.at === b.at ? 0 : a.at - b.at));
}

/** What a pod has, by driver: "gpu.example.com: gpu-0, gpu-1". */
export function devicesOf(host: string, devices: ClaimedDevice[], pod: number): string {
  const found = new Map<string, string[]>();
  for (const one of devices) {
    if (!one.pods.includes(pod)) continue;
    const title = one.pool === host ? one.driver : `${one.driver}/${one.pool}`;
    found.set(title, [...(found.get(title) ?? []), one.name]);
  }
  return [...found].map(([title, names]) => `${title}: ${names.join(", ")}`).join("; ");
}

/** The zones of a pod's CPUs and memory; those of its devices beside them, where they are others. */
export function zonesOf(own: number[], devices: ClaimedDevice[], pod: number): string {
  const told = [...new Set(devices.filter((one) => one.pods.includes(pod)).flatMap((one) => one.zones))].sort((a, b) => a - b);
  const here = own.join(", "), there = told.join(", ");
  if (!there || told.every((one) => own.includes(one))) return here;
  return here ? `${here}; devices ${there}` : there;
}

function words(one: ClaimedDevice, letter: (pod: number) => string): string {
  const who = [...one.pods.map(letter), ...one.claims.map((claim) => `claim ${claim}`), ...(one.others ? ["others"] : [])].join(", ");
  if (one.state === "free") return one.taint ? "tainted" : "";
  if (one.state === "blocked") return "blocked";
  return `${who}${one.state === "shared" ? ", in part" : ""}${one.state === "gone" ? ", not published" : ""}`;
}

const MEANS: Record<ClaimedDevice["state"], string> = { free: "free", held: "held", shared: "shared: some of it is held", blocked: "blocked: others of its hardware are held", gone: "held, and not published any more" };

export function Claimed({ host, devices, more, colours, theme, lit, light, letter }: { host: string; devices: ClaimedDevice[]; more: number; colours: string[]; theme: Theme; lit: number; light: (pod: number) => void; letter: (pod: number) => string }): JSX.Element | null {
  if (!devices.length) return null;
  const free = devices.filter((one) => one.state === "free" && !one.taint).length;
  return (
    <section class="claimed" aria-label="Devices of claims">
      <h3>Devices of claims</h3>
      <p class="dim small">{free} of {devices.length} free{more ? `; ${more} more are not shown` : ""}</p>
      {grouped(host, devices).map((group) => (
        <div key={`${group.zones} ${group.title}`}>
          <h4>{group.zones} <span class="dim">{group.title}</span></h4>
          <ul>
            {group.devices.map((one) => {
              const pod = one.pods[0] ?? -1, said = words(one, letter);
              const fill = pod >= 0 ? colours[pod]! : one.claims.length || one.others ? theme.other : theme.free;
              return (
                <li key={one.name} class={one.taint ? "out" : one.state} style={{ opacity: lit >= 0 && !one.pods.includes(lit) ? 0.4 : 1 }} title={`${one.driver}/${one.pool}/${one.name}: ${MEANS[one.state]}${one.taint ? `, tainted ${one.taint}` : ""}`} onMouseEnter={() => light(pod)} onMouseLeave={() => light(-1)}>
                  <span class="dot" style={{ background: fill }} />{one.name}{said && <>{" "}<b class={one.taint || one.state === "gone" ? "wrong" : ""}>{said}</b></>}
                </li>
              );
            })}
          </ul>
        </div>
      ))}
    </section>
  );
}
