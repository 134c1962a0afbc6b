// What each colour mode says, and in which colours: two themes, told apart by colour-blind readers, red for what is wrong.
import { COLOURS, CROSSES, LOST, LOOKS, OVER, type Cluster, type Holder } from "./model";

export type Mode = "occupancy" | "queue" | "workload" | "age" | "problem";
export const MODES: { mode: Mode; label: string }[] = [
  { mode: "occupancy", label: "Occupancy" },
  { mode: "queue", label: "Queue" },
  { mode: "workload", label: "Workload" },
  { mode: "age", label: "Age" },
  { mode: "problem", label: "Problems" },
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
  mark: string; // what marks upon a colour are drawn in
  tones: string[]; // of used: another one for each neighbour
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
  mark: "#1b2127",
  tones: ["#2c6e9e", "#5590bb", "#1d4f76"],
  back: "#c9d1d8",
  out: "#e9e6e0",
  outLine: "#a9a396",
  wrong: "#c4231b",
  focus: "#0b57d0",
  ages: ["#1f8a70", "#5a9e4b", "#b59a1f", "#b9772a", "#8a5a7d"],
  kinds: ["#2c6e9e", "#d9921f", "#2f8f63", "#b05aa8", "#7d5a3c", "#7cb5dd", "#93a82f", "#5a52b0", "#dd93a8", "#37a3a3"],
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
  mark: "#0d1114",
  tones: ["#58a6d9", "#93c7e8", "#2f7fb5"],
  back: "#39434d",
  out: "#2a2722",
  outLine: "#6d6658",
  wrong: "#ff6a5e",
  focus: "#8ab4f8",
  ages: ["#4cc2a3", "#86c670", "#dcc552", "#e0a05a", "#c08fb4"],
  kinds: ["#4d9ad6", "#e8ae4a", "#5cbf8d", "#d08bd0", "#b08d6a", "#b5dcf5", "#c3cf5e", "#9a92ee", "#f0b3c4", "#4cc4bf"],
  other: "#66717c",
};

export const AGES: { upTo: number; label: string }[] = [
  { upTo: 3600, label: "under an hour" },
  { upTo: 6 * 3600, label: "under 6 hours" },
  { upTo: 86400, label: "under a day" },
  { upTo: 7 * 86400, label: "under a week" },
  { upTo: Infinity, label: "longer" },
];

export const WRONG: { bit: number; one: string; more: string }[] = [
  { bit: LOST, one: "host is not ready, and pods are on it", more: "hosts are not ready, and pods are on them" },
  { bit: OVER, one: "host has more taken than it has", more: "hosts have more taken than they have" },
  { bit: CROSSES, one: "host has a pod across sockets without need", more: "hosts have a pod across sockets without need" },
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
export const TEXTURES = LOOKS / COLOURS;

/** Which mark goes with a colour; who has the colour of another, ten places on, has another mark. */
export function textureOf(place: number, colours: number): number {
  return (place + Math.floor(place / colours)) % TEXTURES;
}

export interface Paint {
  colour: string;
  texture: number;
}

/** `kinds`: the place of each queue among all. */
export function paintOf(mode: Mode, theme: Theme, one: Holder | undefined, kinds: Map<string, number>, cluster: Cluster, now: number): Paint {
  const plain = (colour: string): Paint => ({ colour, texture: 0 });
  if (mode === "problem") return plain(theme.back);
  if (mode === "occupancy") return plain(one ? theme.tones[cluster.lookOf(one).tone]! : theme.used);
  if (!one) return plain(theme.other);
  if (mode === "queue") {
    const name = queueOf(one);
    return name === "" ? plain(theme.other) : kindOf(theme, kinds.get(name) ?? 0);
  }
  if (mode === "workload") return kindOf(theme, cluster.lookOf(one).look);
  if (!one.admitted) return plain(theme.other);
  const at = AGES.findIndex((each) => now - one.admitted < each.upTo), age = at < 0 ? AGES.length - 1 : at;
  return { colour: theme.ages[age]!, texture: age };
}

/** Of so many queues or workloads, one. */
export function kindOf(theme: Theme, place: number): Paint {
  return { colour: theme.kinds[place % theme.kinds.length]!, texture: textureOf(place, theme.kinds.length) };
}

/** Black or white, whichever is read better on a colour (#rrggbb). */
export function inkOn(colour: string): string {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; // as WCAG 2.2 has relative luminance
  });
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue! > 0.179 ? "#000000" : "#ffffff";
}
