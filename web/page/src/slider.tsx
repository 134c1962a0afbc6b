// Through the time of a simulation: one moment after the other, by hand or by itself.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { SetQuery } from "./map";
import { elapsed } from "./model";

const STEP = 400; // milliseconds between two moments that follow by themselves

export function Slider({ times, at, set }: { times: number[]; at: number; set: SetQuery }): JSX.Element {
  const [plays, play] = useState(false), end = times.length - 1;
  useEffect(() => {
    if (!plays) return;
    if (at >= end) return play(false);
    const timer = setTimeout(() => set({ t: String(at + 1) }, true), STEP);
    return () => clearTimeout(timer);
  }, [plays, at, end]);
  const start = (): void => {
    if (!plays && at >= end) set({ t: "0" }, true);
    play(!plays);
  };
  return (
    <section class="slider" aria-label="Time of the simulation">
      <button type="button" class="plain" onClick={start}>{plays ? "Pause" : "Play"}</button>
      <input type="range" min={0} max={end} value={at} aria-label="Time" aria-valuetext={elapsed(times[at] ?? 0)} onInput={(event) => { play(false); set({ t: event.currentTarget.value }, true); }} />
      <span class="at">{elapsed(times[at] ?? 0)} <span class="dim">of {elapsed(times[end] ?? 0)}</span></span>
    </section>
  );
}
