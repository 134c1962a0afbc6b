// Four curves on one time axis: used and promised, who waits, what is stranded by level, evictions.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Theme } from "./colours";
import { many, short, type Cluster } from "./model";
import { Waits, useAsked } from "./parts";
import type { Source } from "./source";

interface Told {
  at: number[];
  amount: number[];
  used: number[];
  promised: number[];
  out: number[];
  free: number[];
  waiting: number[];
  wanted: number[];
  evictions: number[];
  levels: string[];
  stranded: number[][];
  relative?: boolean; // times are seconds since a simulation began
}

interface Curve {
  label: string;
  values: number[];
  colour: string;
  fill?: string;
  dash?: number[];
  bars?: boolean;
}

export function History({ source, cluster, now, theme }: { source: Source; cluster: Cluster; now: number; theme: Theme }): JSX.Element {
  const { found, error } = useAsked<Told>(source, "history", {}, Math.floor(now / 30), 10_000);
  if (!found) return <Waits what="Reading the last day" error={error} />;
  if (found.at.length < 2) return <p class="state" role="status">The page has watched for less than a minute: curves begin with the second sample, one every 30 seconds, for a day.</p>;
  return <Curves told={found} unit={cluster.unit} theme={theme} />;
}

function Curves({ told, unit, theme }: { told: Told; unit: string; theme: Theme }): JSX.Element {
  const charts = useMemo((): { title: string; says: string; curves: Curve[] }[] => {
    const last = (values: number[]): number => values.at(-1) ?? 0;
    const held = told.used.map((one, at) => one + told.promised[at]!);
    const top = (values: number[]): number => values.reduce((most, one) => Math.max(most, one), 0);
    const relative = told.relative === true, some = (values: number[]): boolean => values.some((one) => one > 0);
    const evicted = told.evictions.reduce((sum, one) => sum + one, 0);
    return [
      {
        title: `${unit} in use`,
        says: relative ? `at most ${many(top(told.used))} of ${many(last(told.amount))}` : `${many(last(told.used))} used, ${many(last(told.promised))} promised, ${many(last(told.out))} out of ${many(last(told.amount))}`,
        curves: [
          { label: "all", values: told.amount, colour: theme.muted, dash: [2, 3] },
          ...(some(told.out) ? [{ label: "in order", values: told.amount.map((one, at) => one - told.out[at]!), colour: theme.outLine }] : []),
          ...(some(told.promised) ? [{ label: "with promised", values: held, colour: theme.kinds[1]! }] : []),
          { label: "used", values: told.used, colour: theme.used, fill: `${theme.used}2e` },
        ],
      },
      {
        title: "Waiting",
        says: relative ? `at most ${many(top(told.waiting))} jobs, for ${many(top(told.wanted))} ${unit}` : `${many(last(told.waiting))} jobs wait for ${many(last(told.wanted))} ${unit}`,
        curves: [{ label: `${unit} wanted`, values: told.wanted, colour: theme.kinds[3]!, fill: `${theme.kinds[3]!}22` }, { label: "jobs", values: told.waiting, colour: theme.ink }],
      },
      {
        title: "Stranded",
        says: relative ? "free, but in no whole domain" : `free, but in no whole domain: ${told.levels.map((level, at) => `${many(last(told.stranded[at] ?? []))} by ${short(level)}`).join(", ") || "no levels"}`,
        curves: [{ label: "free", values: told.free, colour: theme.muted, dash: [2, 3] }, ...told.levels.map((level, at) => ({ label: short(level), values: told.stranded[at] ?? [], colour: theme.kinds[(at * 2 + 4) % theme.kinds.length]! }))],
      },
      ...(told.evictions.length ? [{ title: "Evictions", says: `${many(evicted)} in this time`, curves: [{ label: "evictions", values: told.evictions, colour: theme.wrong, bars: true }] }] : []),
    ];
  }, [told, unit, theme]);
  return (
    <section class="page history" aria-label="History">
      {charts.map((one) => <Chart key={one.title} {...one} at={told.at} theme={theme} relative={told.relative === true} />)}
      <p class="dim small">Drag across a curve to look closer; double click shows all again. {told.relative ? "Time is that of the simulation." : "Kept in the page's server for a day, one sample every 30 seconds."}</p>
    </section>
  );
}

const SYNC = "history";

function Chart({ title, says, curves, at, theme, relative }: { title: string; says: string; curves: Curve[]; at: number[]; theme: Theme; relative: boolean }): JSX.Element {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null);
  const shape = curves.map((one) => one.label).join();
  useEffect(() => {
    const element = box.current!;
    const axis: uPlot.Axis = { stroke: theme.muted, grid: { stroke: theme.lines[2]!, width: 1 }, ticks: { stroke: theme.lines[1]!, width: 1 }, font: "11px system-ui, sans-serif" };
    const days = (values: number[]): string[] => values.map((one) => (one >= 86400 || one === 0 ? `day ${+(one / 86400).toFixed(1)}` : `${+(one / 3600).toFixed(1)} h`));
    const options: uPlot.Options = {
      width: element.clientWidth, height: 132,
      cursor: { sync: { key: SYNC, setSeries: false }, points: { size: 5 }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: { x: { time: !relative }, y: { range: (_, __, high) => [0, Math.max(1, high * 1.05)] } },
      axes: [{ ...axis, ...(relative ? { values: (_: uPlot, values: number[]) => days(values) } : {}) }, { ...axis, size: 56, values: (_, values) => values.map((one) => (Number.isInteger(one) ? many(one) : "")) }],
      series: [
        { label: "time", value: (_, value) => (value == null ? "–" : relative ? days([value])[0]! : new Date(value * 1000).toLocaleTimeString()) },
        ...curves.map((one): uPlot.Series => ({
          label: one.label, stroke: one.colour, width: 1.5, points: { show: false }, value: (_, value) => (value == null ? "–" : many(value)),
          ...(one.fill ? { fill: one.fill } : {}), ...(one.dash ? { dash: one.dash } : {}),
          paths: one.bars ? uPlot.paths.bars!({ size: [0.8, 6] }) : uPlot.paths.stepped!({ align: 1 }),
        })),
      ],
    };
    plot.current = new uPlot(options, [at, ...curves.map((one) => one.values)], element);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 132 }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
    };
  }, [theme, shape, relative]);
  useEffect(() => plot.current?.setData([at, ...curves.map((one) => one.values)]), [at, curves]);
  return (
    <figure>
      <figcaption><h2>{title}</h2> <span class="dim">{says}</span></figcaption>
      <div ref={box} class="chart" role="img" aria-label={`${title}: ${says}`} />
    </figure>
  );
}
