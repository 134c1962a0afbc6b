// Paste a manifest, see where its pods would go, or what is missing.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { link } from "./route";
import { called, counted, short, type Cluster } from "./model";
import { Named, Text } from "./parts";
import type { Source } from "./source";
import { ReliefText, RoomTable, type Relief, type Room } from "./workload";

interface PodSet {
  name: string;
  count: number;
  policy: string;
  level: string;
  perPod: Record<string, string>;
  ranked: boolean;
  flavor: string;
  levels: string[];
  domains: { values: string[]; pods: number; first: number; nodes: { node: string; pods: number }[] }[];
}

interface Answer {
  name: string;
  namespace: string;
  state: string;
  reason: string;
  message: string;
  queue: string;
  podSets: PodSet[];
  victims: { workload: string; job: string; priority: number; reason: string }[];
  room: Room[];
  relief: Relief | null;
  warnings: string[];
}

/** A Job in the words of this cluster. */
function example(cluster: Cluster, pods: number, policy: "require" | "prefer", level: string): string {
  const devices = cluster.resource === "cpu" ? 4 : Math.max(1, ...cluster.hosts.map((row) => Number(row[1])));
  return `apiVersion: batch/v1
kind: Job
metadata:
  name: train
  annotations:
    kueue.x-k8s.io/${policy}-topology: ${level}
spec:
  parallelism: ${pods}
  completions: ${pods}
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: registry.example/train:1
        resources:
          limits:
            ${cluster.resource}: ${devices}
`;
}

interface Example {
  label: string;
  text: string;
}

function examples(cluster: Cluster): Example[] {
  const levels = cluster.picture.groves.find((one) => one.levels.length)?.levels ?? [], domains = levels.filter((one) => short(one) !== "host");
  const narrow = domains.at(-1) ?? levels[0] ?? "kubernetes.io/hostname", wide = domains[0] ?? narrow;
  return [
    { label: `4 pods in one ${short(narrow)}`, text: example(cluster, 4, "require", narrow) },
    ...(wide !== narrow ? [{ label: `8 pods in one ${short(wide)}`, text: example(cluster, 8, "require", wide) }] : []),
    { label: `8 pods, in one ${short(narrow)} if possible`, text: example(cluster, 8, "prefer", narrow) },
  ];
}

const WORDS: Record<string, string> = { Placed: "would be placed", Preempts: "would be placed once its victims are gone", Waits: "would wait", Refused: "would be refused", NotManaged: "is left to kube-scheduler: it asks for no topology" };

/** The namespace to begin with: details are told only to those who may see it. */
function usual(cluster: Cluster): string {
  const { all, namespaces } = cluster.picture.sees;
  return all || namespaces.includes("default") ? "default" : (namespaces[0] ?? "default");
}

export function WhatIf({ source, cluster }: { source: Source; cluster: Cluster }): JSX.Element {
  const [ideas] = useState(() => examples(cluster)), [text, setText] = useState(ideas[0]!.text), [namespace, setNamespace] = useState(() => usual(cluster));
  const [answers, setAnswers] = useState<Answer[] | null>(null), [error, setError] = useState(""), [busy, setBusy] = useState(false);
  const ask = (event: Event): void => {
    event.preventDefault();
    setBusy(true);
    setError("");
    source.ask<{ answers: Answer[] }>("whatif", { namespace }, text).then(
      (found) => { setAnswers(found.answers); setBusy(false); },
      (failed: unknown) => { setError(failed instanceof Error ? failed.message : String(failed)); setAnswers(null); setBusy(false); },
    );
  };
  return (
    <section class="page whatif" aria-label="What if">
      <form onSubmit={ask}>
        <label for="manifest">A manifest: Jobs, JobSets, LeaderWorkerSets, Deployments, StatefulSets, Pods</label>
        <p class="ideas small">For example {ideas.map((one) => <button type="button" class="plain" key={one.label} onClick={() => setText(one.text)}>{one.label}</button>)}</p>
        <textarea id="manifest" value={text} onInput={(event) => setText(event.currentTarget.value)} spellcheck={false} rows={22} maxLength={256 * 1024} />
        <div class="row">
          <label>Namespace <input value={namespace} onInput={(event) => setNamespace(event.currentTarget.value)} size={16} /></label>
          <button type="submit" class="main" disabled={busy}>{busy ? "Asking …" : "Where would it go?"}</button>
        </div>
        <p class="dim small">Nothing is submitted. The answer is the controller's own, for the cluster as it is now, beside all jobs that wait already.</p>
      </form>
      <div class="answers" aria-live="polite">
        {error && <p class="state wrong" role="alert">{error}</p>}
        {answers?.map((one) => <OneAnswer key={`${one.namespace}/${one.name}`} answer={one} cluster={cluster} />)}
        {!answers && !error && <Before />}
      </div>
    </section>
  );
}

function Before(): JSX.Element {
  return (
    <section class="before" aria-label="What you get">
      <h2>What you get to know</h2>
      <ul>
        <li>where each pod would go, with its rank</li>
        <li>or why it would wait: what is short, and in which domains</li>
        <li>who would have to end, or would be preempted, so that it fits</li>
        <li>what is wrong with its annotations</li>
      </ul>
      <p class="dim">Paste a manifest of your own, or take an example, and press the button below it.</p>
    </section>
  );
}

function OneAnswer({ answer, cluster }: { answer: Answer; cluster: Cluster }): JSX.Element {
  const pods = answer.podSets.reduce((sum, one) => sum + one.count, 0);
  return (
    <article class="answer">
      <h2>{answer.namespace}/{answer.name} <span class={`verdict ${answer.state.toLowerCase()}`}>{WORDS[answer.state] ?? answer.state}</span></h2>
      <p>{answer.state !== "Placed" && answer.reason ? <b>{answer.reason}: </b> : ""}<Text text={answer.message} cluster={cluster} />{answer.queue && <span class="dim"> · queue {answer.queue}</span>}</p>
      {answer.warnings.map((one) => <p class="small" key={one}>Warning: {one}</p>)}
      {answer.podSets.filter((one) => one.domains.length).map((one) => (
        <table key={one.name}>
          <caption>{answer.podSets.length > 1 ? `Pod set ${one.name}: ` : ""}{one.flavor && cluster.several && `${one.flavor}: `}{counted(one.count, "pod")} of {Object.entries(one.perPod).filter(([name]) => name !== "pods").map(([name, amount]) => `${amount} ${called(name)}`).join(", ")}</caption>
          <thead><tr>{one.levels.map((level) => <th scope="col" key={level}>{short(level)}</th>)}<th scope="col" class="n">Pods</th>{one.ranked && <th scope="col">Ranks</th>}</tr></thead>
          <tbody>
            {one.domains.slice(0, 64).map((domain) => (
              <tr key={domain.values.join("/")}>
                {domain.values.map((value, at) => <td key={at}>{at === domain.values.length - 1 && domain.nodes.length === 1 ? <a href={link("map", { host: domain.nodes[0]!.node })}>{value}</a> : value}</td>)}
                <td class="n">{domain.pods}</td>{one.ranked && <td>{domain.pods === 1 ? domain.first : `${domain.first}–${domain.first + domain.pods - 1}`}</td>}
              </tr>
            ))}
            {one.domains.length > 64 && <tr><td colSpan={one.levels.length + 2} class="dim">and {one.domains.length - 64} more domains</td></tr>}
          </tbody>
        </table>
      ))}
      {answer.victims.length > 0 && <p>It would evict: {answer.victims.map((one, at) => <span key={at}>{at > 0 && ", "}{one.workload ? <Named name={one.workload} text={one.job} cluster={cluster} /> : "somebody else's"} (priority {one.priority})</span>)}.</p>}
      {answer.relief && <ReliefText relief={answer.relief} cluster={cluster} />}
      <RoomTable room={answer.room} cluster={cluster} count={pods} />
    </article>
  );
}
