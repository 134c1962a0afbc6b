// Four curves on one time axis: used and promised, who waits, what is stranded by level, evictions.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Theme } from "./colours";
import { elapsed, iso, many, short, type Cluster } from "./model";
import { Waits, useAsked } from "./parts";
import type { Source } from "./source";

type Column = (number | null)[];

/** `promised` and what follows it are of the page's own memory, `largest` of Prometheus. */
interface Told {
  at: number[];
  amount: Column;
  used: Column;
  free: Column;
  waiting: Column;
  evictions: Column;
  levels: string[];
  promised?: number[];
  out?: number[];
  wanted?: number[];
  stranded?: number[][];
  largest?: Column[];
  source?: string;
  step?: number;
  why?: string; // there is no history from elsewhere
  relative?: boolean; // times are seconds since a simulation began
}

interface Curve {
  label: string;
  values: Column;
  colour: string;
  fill?: string;
  dash?: number[];
  bars?: boolean;
}

export function History({ source, cluster, now, theme }: { source: Source; cluster: Cluster; now: number; theme: Theme }): JSX.Element {
  const { found, error } = useAsked<Told>(source, "history", {}, Math.floor(now / 30), 10_000);
  if (!found) return <Waits what="Reading the last day" error={error} />;
  return (
    <section class="page history" aria-label="History" tabIndex={0}>
      {found.why && <p class="wrong" role="status">{found.why}. This is what the page saw itself.</p>}
      {found.at.length < 2
        ? <p class="state" role="status">The page has watched for less than a minute: curves begin with the second sample, one every 30 seconds, for a day.</p>
        : <Curves told={found} unit={cluster.unit} theme={theme} shown={source.times.length ? cluster.time : null} />}
    </section>
  );
}

const last = (values: Column): number => values.reduce<number>((found, one) => one ?? found, 0);
const top = (values: Column): number => values.reduce<number>((most, one) => Math.max(most, one ?? 0), 0);
const some = (values: Column): boolean => values.some((one) => one !== null && one > 0);

interface Shown {
  title: string;
  says: string;
  curves: Curve[];
}

/** What all histories have, and, told by the page's own memory or a simulation, who has it and what is stranded. */
function Curves({ told, unit, theme, shown }: { told: Told; unit: string; theme: Theme; shown: number | null }): JSX.Element {
  const charts = useMemo(() => shownOf(told, unit, theme), [told, unit, theme]);
  return (
    <>
      {charts.map((one) => <Chart key={one.title} {...one} at={told.at} theme={theme} relative={told.relative === true} shown={shown} />)}
      <p class="dim small">Drag across a curve to look closer; double click shows all again. {told.relative ? "Time is that of the simulation." : told.source === "prometheus" ? `From Prometheus, one sample every ${(told.step ?? 0) / 60} minutes, for a day.` : "Kept in the page's server for a day, one sample every 30 seconds."}</p>
    </>
  );
}

function shownOf(told: Told, unit: string, theme: Theme): Shown[] {
  const promised = told.promised ?? [], out = told.out ?? [], wanted = told.wanted ?? [], relative = told.relative === true;
  const inUse: Shown = {
    title: `${unit} in use`,
    says: relative ? `at most ${many(top(told.used))} of ${many(last(told.amount))}`
      : told.promised ? `${many(last(told.used))} used, ${many(last(promised))} reserved, ${many(last(out))} out of service, of ${many(last(told.amount))}`
      : `${many(last(told.used))} used, reserved or out of service, of ${many(last(told.amount))}`,
    curves: [
      { label: "all", values: told.amount, colour: theme.muted, dash: [2, 3] },
      ...(some(out) ? [{ label: "in order", values: told.amount.map((one, at) => (one ?? 0) - (out[at] ?? 0)), colour: theme.outLine, dash: [9, 3, 2, 3] }] : []),
      ...(some(promised) ? [{ label: "with reserved", values: told.used.map((one, at) => (one ?? 0) + (promised[at] ?? 0)), colour: theme.kinds[1]!, dash: [7, 3] }] : []),
      { label: told.promised ? "used" : "not free", values: told.used, colour: theme.used, fill: `${theme.used}2e` },
    ],
  };
  const waiting: Shown = {
    title: "Waiting",
    says: relative ? `at most ${many(top(told.waiting))} jobs, for ${many(top(wanted))} ${unit}` : `${many(last(told.waiting))} jobs wait${told.wanted ? ` for ${many(last(wanted))} ${unit}` : ""}`,
    curves: [
      ...(told.wanted ? [{ label: `${unit} wanted`, values: wanted, colour: theme.kinds[3]!, fill: `${theme.kinds[3]!}22` }] : []),
      { label: "jobs", values: told.waiting, colour: theme.ink, dash: [7, 3] },
    ],
  };
  const byLevel = (columns: Column[]): Curve[] => [
    { label: "free", values: told.free, colour: theme.muted, dash: [2, 3] },
    ...told.levels.map((level, at) => ({ label: short(level), values: columns[at] ?? [], colour: theme.kinds[(at * 2 + 4) % theme.kinds.length]!, dash: DASHES[at % DASHES.length]! })),
  ];
  const levels = (columns: Column[]): string => told.levels.map((level, at) => `${many(last(columns[at] ?? []))} by ${short(level)}`).join(", ") || "no levels";
  const room: Shown = told.largest
    ? { title: "Largest room", says: `what is free in the domain with most of it: ${levels(told.largest)}`, curves: byLevel(told.largest) }
    : { title: "Stranded", says: relative ? "free, but in no whole domain" : `free, but in no whole domain: ${levels(told.stranded ?? [])}`, curves: byLevel(told.stranded ?? []) };
  const evicted = told.evictions.reduce<number>((sum, one) => sum + (one ?? 0), 0);
  const evictions: Shown = { title: "Evictions", says: `${many(evicted)} in this time`, curves: [{ label: "evictions", values: told.evictions, colour: theme.wrong, bars: true }] };
  return [inUse, waiting, room, ...(told.evictions.length ? [evictions] : [])];
}

const DASHES = [[], [7, 3], [3, 3], [9, 3, 2, 3]]; // so that no two curves are told apart by colour alone
const SYNC = "history";
const HEIGHT = 150;
/** Steps in which the time of a simulation is told, in seconds: whole minutes, hours and days. */
const ROUND = [1, 5, 15, 60, 300, 900, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 5 * 86400, 10 * 86400, 30 * 86400, 90 * 86400, 365 * 86400];

/** A curve's dashes, as the border of its mark in the legend. */
function border(dash: number[] | undefined): string {
  if (!dash?.length) return "solid";
  return dash.length > 2 ? "double" : dash[0]! > 3 ? "dashed" : "dotted";
}

/** `shown`: the time that the other views are of, where that is not the last. */
function Chart({ title, says, curves, at, theme, relative, shown }: { title: string; says: string; curves: Curve[]; at: number[]; theme: Theme; relative: boolean; shown: number | null }): JSX.Element {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null), mark = useRef(shown);
  mark.current = shown;
  const shape = curves.map((one) => one.label).join();
  useEffect(() => {
    const element = box.current!;
    const axis: uPlot.Axis = { stroke: theme.muted, grid: { stroke: theme.lines[2]!, width: 1 }, ticks: { stroke: theme.lines[1]!, width: 1 }, font: "11px system-ui, sans-serif" };
    const times = (_: uPlot, values: number[]): string[] => {
      if (relative) return values.map(elapsed);
      let day = "";
      return values.map((one) => {
        const found = iso(one), label = found.day === day ? found.time : `${found.time}\n${found.day}`;
        day = found.day;
        return label;
      });
    };
    const index = (data: uPlot.AlignedData): number => (mark.current === null ? data[0].length - 1 : Math.max(0, data[0].findLastIndex((one) => one <= mark.current!)));
    const line = (plot: uPlot): void => {
      if (mark.current === null) return;
      const x = Math.round(plot.valToPos(mark.current, "x", true));
      plot.ctx.fillStyle = theme.ink;
      plot.ctx.fillRect(x, plot.bbox.top, Math.max(1, devicePixelRatio), plot.bbox.height);
    };
    const moment = (at: number): string => (relative ? elapsed(at) : `${iso(at).day} ${iso(at).time}`);
    const options: uPlot.Options = {
      width: element.clientWidth, height: HEIGHT,
      cursor: { sync: { key: SYNC, setSeries: false }, points: { size: 5 }, drag: { x: true, y: false } },
      legend: { live: true, markers: { dash: (_, at) => border(curves[at - 1]?.dash) } },
      padding: [8, 14, 0, 0],
      hooks: { draw: [line] },
      scales: { x: { time: !relative }, y: { range: (_, __, high) => [0, Math.max(1, high * 1.05)] } },
      axes: [{ ...axis, values: times, space: 84, ...(relative ? { incrs: ROUND, size: 30 } : { size: 46 }) }, { ...axis, size: 56, values: (_, values) => values.map((one) => (Number.isInteger(one) ? many(one) : "")) }],
      series: [
        { label: "time", value: (plot, value) => moment(value ?? plot.data[0][index(plot.data)] ?? 0) }, // that is shown, while nobody points at one
        ...curves.map((one): uPlot.Series => ({
          label: one.label, stroke: one.colour, width: 1.5, points: { show: false }, value: (plot, value, series) => many(value ?? plot.data[series]?.[index(plot.data)] ?? last(plot.data[series] as Column)),
          ...(one.fill ? { fill: one.fill } : {}), ...(one.dash ? { dash: one.dash } : {}),
          paths: one.bars ? uPlot.paths.bars!({ size: [0.8, 6] }) : uPlot.paths.stepped!({ align: 1 }),
        })),
      ],
    };
    plot.current = new uPlot(options, [at, ...curves.map((one) => one.values)], element);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
    };
  }, [theme, shape, relative]);
  useEffect(() => plot.current?.setLegend({ idx: null as unknown as number }, false), [shown]);
  useEffect(() => plot.current?.redraw(false), [shown]);
  useEffect(() => plot.current?.setData([at, ...curves.map((one) => one.values)]), [at, curves]);
  return (
    <figure>
      <figcaption><h2>{title}</h2> <span class="dim">{says}</span></figcaption>
      <div ref={box} class="chart" role="img" aria-label={`${title}: ${says}`} />
    </figure>
  );
}
