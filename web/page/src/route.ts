// The address of what is shown: everything worth showing to somebody has one. No token is ever in it.
import { useEffect, useState } from "preact/hooks";

export const VIEWS = ["map", "queues", "workloads", "history", "whatif"] as const;
/** What goes with whoever reads from view to view: the namespace, and the time of a simulation. */
const STICKY = ["ns", "t"];
export type View = (typeof VIEWS)[number];

export interface Route {
  view: View;
  query: Record<string, string>;
}

export function parse(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?");
  const view = VIEWS.find((one) => one === path) ?? "map";
  return { view, query: Object.fromEntries(new URLSearchParams(search)) };
}

export function link(view: View, query: Record<string, string | undefined> = {}): string {
  const here = parse(location.hash).query, sticky = Object.fromEntries(STICKY.flatMap((one) => (here[one] ? [[one, here[one]]] : [])));
  const kept = Object.entries({ ...sticky, ...query } as typeof query).filter((pair): pair is [string, string] => pair[1] !== undefined && pair[1] !== "");
  const search = new URLSearchParams(kept).toString();
  return `#/${view}${search ? `?${search}` : ""}`;
}

export function go(view: View, query: Record<string, string | undefined>, replace = false): void {
  const to = link(view, query);
  if (to === location.hash) return;
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = (): void => set(parse(location.hash));
    addEventListener("hashchange", changed);
    addEventListener("popstate", changed);
    return () => {
      removeEventListener("hashchange", changed);
      removeEventListener("popstate", changed);
    };
  }, []);
  return route;
}
