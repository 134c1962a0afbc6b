// A host from inside: sockets, zones, CPUs, memory, devices with their links, NICs, and which pod has what.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Claimed, devicesOf, zonesOf, type ClaimedDevice } from "./claims";
import { inkOn, type Theme } from "./colours";
import { hashed, many, stateName, type Cluster } from "./model";
import { Name, Waits, useAsked } from "./parts";
import { link } from "./route";
import type { Source } from "./source";

interface PodInside {
  name: string;
  holder: number;
  amount: number;
  rank?: number | null;
  phase?: string;
  reason?: string;
  crosses: boolean;
  observed?: boolean;
  zones: { zone: number; amounts: Record<string, number> }[];
}

interface Inside {
  name: string;
  amount: number;
  state: number;
  resource: string;
  pods: PodInside[];
  kept: [number, number][];
  source: string;
  problems: string[];
  claimed: ClaimedDevice[];
  more: number;
  policy?: string;
  scope?: string;
  zones?: { zone: number; socket: number; have: Record<string, number>; free: Record<string, number> }[];
  devices?: { id: string; zones: number[]; healthy: boolean; pod: number }[];
  links?: [number, number, number, string][];
  nics?: { name: string; zone: string }[];
}

export function Machine({ source, cluster, name, version, theme, close }: { source: Source; cluster: Cluster; name: string; version: number; theme: Theme; close: () => void }): JSX.Element {
  const { found, error } = useAsked<Inside>(source, "host", { name }, version, 3000);
  const [lit, light] = useState(-1);
  const index = cluster.at.get(name);
  const domain = index === undefined ? "" : cluster.domainOf(index);
  return (
    <aside class="drawer" aria-label={`Host ${name}`} tabIndex={0}>
      <header>
        <h2><Name text={name} /></h2>
        <p class="dim">{domain ? <a href={link("map", { at: domain, host: name })}>{domain.split("/").join(" / ")}</a> : "in no topology"}</p>
        <button type="button" class="close" onClick={close} aria-label="Close">×</button>
      </header>
      {!found ? <Waits what="Reading the host" error={error} /> : <Body cluster={cluster} found={found} theme={theme} lit={lit} light={light} />}
    </aside>
  );
}

function Body({ cluster, found, theme, lit, light }: { cluster: Cluster; found: Inside; theme: Theme; lit: number; light: (pod: number) => void }): JSX.Element {
  const used = found.pods.reduce((sum, one) => sum + one.amount, 0), kept = found.kept.reduce((sum, one) => sum + one[1], 0);
  const colours = podColours(cluster, found, theme);
  return (
    <>
      <p class="sum">
        {used} used{kept ? `, ${kept} reserved` : ""}, {Math.max(0, found.amount - used - kept)} {found.state ? "out of service" : "free"} of {found.amount} {cluster.unit}
        {found.state !== 0 && <b class="wrong"> · {stateName(found.state)}</b>}
      </p>
      {found.zones ? <Sockets found={found} colours={colours} theme={theme} lit={lit} light={light} unit={cluster.unit} /> : <Plain found={found} colours={colours} theme={theme} />}
      {found.zones && (
        <p class="dim small">
          Topology Manager: {found.policy}, scope {found.scope}; by {found.source}
          {found.pods.some((one) => one.zones.length) && (found.pods.every((one) => one.observed || !one.zones.length) ? "; placements as observed" : "; some placements as predicted")}
        </p>
      )}
      {!found.zones && <p class="dim small">This node publishes nothing of its inside. With <code>topogate install --agent</code> each node does.</p>}
      {found.problems.map((one) => <p class="small wrong" key={one}>{one}</p>)}
      <Claimed host={found.name} devices={found.claimed} more={found.more} colours={colours} theme={theme} lit={lit} light={light} letter={letter} />
      <Pods cluster={cluster} found={found} colours={colours} theme={theme} lit={lit} light={light} />
    </>
  );
}

function podColours(cluster: Cluster, found: Inside, theme: Theme): string[] {
  const taken = new Set<number>();
  return found.pods.map((pod) => {
    const who = cluster.holders.get(pod.holder);
    if (!who) return theme.other;
    let at = hashed(pod.name || who.key) % theme.kinds.length;
    for (let tries = 0; taken.has(at) && tries < theme.kinds.length; tries++) at = (at + 1) % theme.kinds.length;
    taken.add(at);
    return theme.kinds[at]!;
  });
}

/** By which a pod is known beside its colour. */
function letter(pod: number): string {
  return pod < 26 ? String.fromCharCode(65 + pod) : String(pod + 1);
}

/** Without an inside: the devices in a row. */
function Plain({ found, colours, theme }: { found: Inside; colours: string[]; theme: Theme }): JSX.Element {
  const cells: number[] = [];
  found.pods.forEach((pod, at) => { for (let i = 0; i < pod.amount; i++) cells.push(at); });
  const shown = Math.min(found.amount, 64), side = 22;
  return (
    <svg class="inside" role="img" aria-label={`${cells.length} of ${found.amount} in use`} viewBox={`0 0 ${8 * (side + 4)} ${Math.ceil(shown / 8) * (side + 4)}`} width={8 * (side + 4)}>
      {Array.from({ length: shown }, (_, at) => (
        <g key={at}>
          <rect x={(at % 8) * (side + 4)} y={Math.floor(at / 8) * (side + 4)} width={side} height={side} rx="3" fill={cells[at] === undefined ? theme.free : colours[cells[at]!]!} />
          {cells[at] !== undefined && <text x={(at % 8) * (side + 4) + side / 2} y={Math.floor(at / 8) * (side + 4) + side / 2 + 4} text-anchor="middle" class="tiny onfill" style={{ fill: inkOn(colours[cells[at]!] ?? "") }}>{letter(cells[at]!)}</text>}
        </g>
      ))}
    </svg>
  );
}

const BOX = 34, GAP = 12;

function Sockets({ found, colours, theme, lit, light, unit }: { found: Inside; colours: string[]; theme: Theme; lit: number; light: (pod: number) => void; unit: string }): JSX.Element {
  const zones = found.zones!, devices = found.devices ?? [], links = found.links ?? [], nics = found.nics ?? [];
  const sockets = [...new Set(zones.map((one) => one.socket))].sort((a, b) => a - b);
  const width = 456, inner = width - 16;
  const perSocket = Math.max(1, ...sockets.map((socket) => zones.filter((one) => one.socket === socket).length));
  const columns = Math.min(4, perSocket), zoneWidth = (inner - 16 - GAP * (columns - 1)) / columns;
  const fit = Math.max(1, Math.floor((zoneWidth - 12) / (BOX + 4)));
  const most = Math.max(1, ...zones.map((zone) => devices.filter((one) => (one.zones[0] ?? -1) === zone.zone).length));
  const rows = Math.ceil(most / fit), zoneHeight = 66 + rows * (BOX + 12);
  const zoneRows = Math.ceil(perSocket / columns), socketHeight = 22 + zoneRows * (zoneHeight + 8) + 4;
  const middle: { x: number; y: number }[] = [];
  const homeless: number[] = [];
  const parts: JSX.Element[] = [], marks: JSX.Element[] = [];
  sockets.forEach((socket, s) => {
    const top = 4 + s * (socketHeight + 26);
    parts.push(<rect key={`s${socket}`} x="8" y={top} width={inner} height={socketHeight} rx="6" fill={theme.frames[0]} stroke={theme.lines[0]} />);
    parts.push(<text key={`t${socket}`} x="16" y={top + 15} class="label strong">Socket {socket}</text>);
    zones.filter((one) => one.socket === socket).forEach((zone, z) => {
      const x = 16 + (z % columns) * (zoneWidth + GAP), y = top + 22 + Math.floor(z / columns) * (zoneHeight + 8);
      parts.push(<rect key={`z${zone.zone}`} x={x} y={y} width={zoneWidth} height={zoneHeight} rx="4" fill={theme.frames[2]} stroke={theme.lines[1]} />);
      parts.push(<text key={`zt${zone.zone}`} x={x + 6} y={y + 13} class="label">Zone {zone.zone}</text>);
      const card = nics.filter((one) => one.zone === `numa-${zone.zone}`);
      if (card.length) parts.push(
        <g key={`n${zone.zone}`}>
          <title>{card.map((one) => one.name).join(", ")}</title>
          <rect x={x + zoneWidth - 48} y={y + 4} width="42" height="13" rx="2" fill="none" stroke={theme.muted} />
          <text x={x + zoneWidth - 27} y={y + 14} class="tiny" text-anchor="middle">{card.length > 1 ? `${card.length} NICs` : "NIC"}</text>
        </g>,
      );
      parts.push(<Bar key={`c${zone.zone}`} x={x + 6} y={y + 20} width={zoneWidth - 12} what="CPU" have={zone.have["cpu"] ?? 0} found={found} zone={zone.zone} resource="cpu" free={zone.free["cpu"]} colours={colours} theme={theme} lit={lit} text={`${Math.round((zone.have["cpu"] ?? 0) / 1000)} CPUs`} />);
      parts.push(<Bar key={`m${zone.zone}`} x={x + 6} y={y + 41} width={zoneWidth - 12} what="Memory" have={zone.have["memory"] ?? 0} found={found} zone={zone.zone} resource="memory" free={zone.free["memory"]} colours={colours} theme={theme} lit={lit} text={`${Math.round((zone.have["memory"] ?? 0) / 2 ** 30)} GiB`} />);
      let at = 0;
      devices.forEach((device, d) => {
        if ((device.zones[0] ?? -1) !== zone.zone) return;
        middle[d] = { x: x + 6 + (at % fit) * (BOX + 4) + BOX / 2, y: y + 66 + Math.floor(at / fit) * (BOX + 12) + BOX / 2 };
        at++;
      });
    });
  });
  devices.forEach((_, d) => { if (!middle[d]) homeless.push(d); });
  const bottom = 4 + sockets.length * (socketHeight + 26) - 20;
  homeless.forEach((d, at) => { middle[d] = { x: 16 + BOX / 2 + at * (BOX + 4), y: bottom + 14 + BOX / 2 }; });
  const owner = ownerOf(found);
  links.filter((one) => one[2] > 0).forEach(([a, b, count]) => {
    const from = middle[a], to = middle[b];
    if (!from || !to) return;
    const same = owner[a]! >= 0 && owner[a] === owner[b];
    const back = lit >= 0 && owner[a] !== lit;
    const bend = from.y === to.y ? BOX / 2 + 3 + Math.abs(to.x - from.x) / 22 : 0;
    marks.push(<path key={`l${a}-${b}`} d={bend ? `M${from.x} ${from.y + BOX / 2 - 1}Q${(from.x + to.x) / 2} ${from.y + bend * 1.45} ${to.x} ${to.y + BOX / 2 - 1}` : `M${from.x} ${from.y}L${to.x} ${to.y}`} fill="none" stroke={same ? colours[owner[a]!] : theme.lines[0]} stroke-width={Math.min(3, 0.5 + count / 8)} opacity={back ? 0.15 : same ? 0.9 : 0.4} />);
  });
  devices.forEach((device, d) => {
    const at = middle[d]!, pod = owner[d]!, back = lit >= 0 && pod !== lit;
    const crosses = pod >= 0 && found.pods[pod]!.crosses;
    const title = `${unit} ${d}${device.id ? ` (${device.id})` : ""}: ${!device.healthy ? "unhealthy" : pod >= 0 ? found.pods[pod]!.name || "others" : "free"}`;
    marks.push(
      <g key={`d${d}`} opacity={back ? 0.3 : 1} onMouseEnter={() => light(pod)} onMouseLeave={() => light(-1)}>
        <title>{title}</title>
        <rect x={at.x - BOX / 2} y={at.y - BOX / 2} width={BOX} height={BOX} rx="4" fill={pod >= 0 ? colours[pod] : theme.free} stroke={crosses || !device.healthy ? theme.wrong : theme.lines[0]} stroke-width={crosses || !device.healthy ? 3 : 1} />
        <text x={at.x} y={pod >= 0 ? at.y : at.y + 4} text-anchor="middle" class={pod >= 0 ? "label onfill" : "label"} style={pod >= 0 ? { fill: inkOn(colours[pod] ?? "") } : undefined}>{d}</text>
        {pod >= 0 && <text x={at.x} y={at.y + 12} text-anchor="middle" class="tiny onfill" style={{ fill: inkOn(colours[pod] ?? "") }}>{letter(pod)}</text>}
      </g>,
    );
  });
  const height = bottom + (homeless.length ? BOX + 24 : 8);
  return (
    <svg class="inside" role="img" aria-label={`${sockets.length} sockets, ${zones.length} zones, ${devices.length} devices; the table below says who has them`} viewBox={`0 0 ${width} ${height}`}>
      {parts}
      {sockets.length > 1 && sockets.slice(1).map((socket, s) => {
        const y = 4 + s * (socketHeight + 26) + socketHeight, crossing = found.pods.filter((one) => one.crosses).length;
        return (
          <g key={`x${socket}`}>
            <path d={`M${width / 2} ${y}V${y + 26}`} stroke={crossing ? theme.wrong : theme.lines[0]} stroke-width="4" />
            <text x={width / 2 + 10} y={y + 17} class="tiny">{crossing ? `${crossing} ${crossing > 1 ? "pods cross" : "pod crosses"} here without need` : "between sockets"}</text>
          </g>
        );
      })}
      {marks}
    </svg>
  );
}

/** Which pod has each device: where ids are known, by them; else in the order of zones. */
function ownerOf(found: Inside): number[] {
  const devices = found.devices ?? [];
  const owner = devices.map((one) => one.pod);
  found.pods.forEach((pod, at) => {
    if (owner.includes(at)) return;
    for (const use of pod.zones) {
      let left = use.amounts[found.resource] ?? 0;
      devices.forEach((device, d) => {
        if (left > 0 && owner[d]! < 0 && device.zones.includes(use.zone)) {
          owner[d] = at;
          left--;
        }
      });
    }
  });
  return owner;
}

function Bar({ x, y, width, what, have, found, zone, resource, free, colours, theme, lit, text }: { x: number; y: number; width: number; what: string; have: number; found: Inside; zone: number; resource: string; free: number | undefined; colours: string[]; theme: Theme; lit: number; text: string }): JSX.Element {
  let from = 0;
  const pieces = found.pods.flatMap((pod, at) => {
    const amount = pod.zones.find((one) => one.zone === zone)?.amounts[resource] ?? 0;
    if (!amount || !have) return [];
    const a = (from / have) * width, w = Math.min(width - a, (amount / have) * width);
    from += amount;
    return [<rect key={at} x={x + a} y={y} width={Math.max(0, w)} height="8" fill={colours[at]} opacity={lit >= 0 && lit !== at ? 0.3 : 1} />];
  });
  const share = have ? Math.round((100 * Math.min(from, have)) / have) : 0;
  return (
    <g>
      <title>{`${what}: ${text}, ${share}% held by pods of their own${free === undefined ? "" : ""}`}</title>
      <rect x={x} y={y} width={width} height="8" rx="1" fill={theme.free} />
      {pieces}
      <text x={x} y={y + 17} class="tiny">{text}</text>
    </g>
  );
}

function Pods({ cluster, found, colours, theme, lit, light }: { cluster: Cluster; found: Inside; colours: string[]; theme: Theme; lit: number; light: (pod: number) => void }): JSX.Element {
  if (!found.pods.length && !found.kept.length) return <p class="state">No pod is here.</p>;
  const ranked = found.pods.some((pod) => pod.rank != null);
  return (
    <table class="pods">
      <caption class="hidden">Pods on this host</caption>
      <thead><tr><th scope="col">Pod</th>{ranked && <th scope="col">Rank</th>}<th scope="col" class="n">{cluster.unit}</th><th scope="col">Zones</th><th scope="col">Phase</th></tr></thead>
      <tbody>
        {found.pods.map((pod, at) => {
          const who = cluster.holders.get(pod.holder), devices = devicesOf(found.name, found.claimed, at);
          return (
            <tr key={pod.name || at} class={lit === at ? "lit" : ""} onMouseEnter={() => light(at)} onMouseLeave={() => light(-1)}>
              <td><span class="dot" style={{ background: colours[at] }} /><b class="letter">{letter(at)}</b> {who ? <a href={link("map", { workload: who.key })}>{pod.name}</a> : <span class="dim">others</span>}{devices && <div class="dim">{devices}</div>}</td>
              {ranked && <td>{pod.rank ?? ""}</td>}
              <td class="n">{pod.amount}</td>
              <td>{zonesOf(pod.zones.map((one) => one.zone), found.claimed, at)}{pod.crosses && <b style={{ color: theme.wrong }}> crosses sockets</b>}</td>
              <td>{pod.reason ? <span class="wrong">{pod.reason}</span> : pod.phase}</td>
            </tr>
          );
        })}
        {found.kept.map(([number, amount]) => {
          const who = cluster.holders.get(number);
          return <tr key={`k${number}`}><td>{who ? <a href={link("map", { workload: who.key })}>{who.title}</a> : <span class="dim">others</span>}</td>{ranked && <td />}<td class="n">{many(amount)}</td><td /><td>reserved</td></tr>;
        })}
      </tbody>
    </table>
  );
}
