// Paste a manifest, see where its pods would go, or what is missing.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { link } from "./route";
import { called, short } from "./model";
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

const EXAMPLE = `apiVersion: batch/v1
kind: Job
metadata:
  name: train
  annotations:
    kueue.x-k8s.io/require-topology: cloud-provider.com/topology-rack
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: registry.example/train:1
        resources:
          limits:
            nvidia.com/gpu: 8
`;

const WORDS: Record<string, string> = { Placed: "would be placed", Preempts: "would be placed once its victims are gone", Waits: "would wait", Refused: "would be refused", NotManaged: "is kube-scheduler's alone" };

export function WhatIf({ source, resource }: { source: Source; resource: string }): JSX.Element {
  const [text, setText] = useState(() => EXAMPLE.replace("nvidia.com/gpu", resource)), [namespace, setNamespace] = useState("default");
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
        <textarea id="manifest" value={text} onInput={(event) => setText(event.currentTarget.value)} spellcheck={false} rows={22} maxLength={256 * 1024} />
        <div class="row">
          <label>Namespace <input value={namespace} onInput={(event) => setNamespace(event.currentTarget.value)} size={16} /></label>
          <button type="submit" class="main" disabled={busy}>{busy ? "Asking …" : "Where would it go?"}</button>
        </div>
        <p class="dim small">Nothing is submitted. The answer is the controller's own, for the cluster as it is now, with everybody who waits already.</p>
      </form>
      <div class="answers" aria-live="polite">
        {error && <p class="state wrong" role="alert">{error}</p>}
        {answers?.map((one) => <OneAnswer key={`${one.namespace}/${one.name}`} answer={one} />)}
        {!answers && !error && <p class="state dim">The answer stands here.</p>}
      </div>
    </section>
  );
}

function OneAnswer({ answer }: { answer: Answer }): JSX.Element {
  const pods = answer.podSets.reduce((sum, one) => sum + one.count, 0);
  return (
    <article class="answer">
      <h2>{answer.namespace}/{answer.name} <span class={`verdict ${answer.state.toLowerCase()}`}>{WORDS[answer.state] ?? answer.state}</span></h2>
      <p>{answer.state !== "Placed" && answer.reason ? `${answer.reason}: ` : ""}{answer.message}{answer.queue && <span class="dim"> · queue {answer.queue}</span>}</p>
      {answer.warnings.map((one) => <p class="small" key={one}>Warning: {one}</p>)}
      {answer.podSets.filter((one) => one.domains.length).map((one) => (
        <table key={one.name}>
          <caption>{answer.podSets.length > 1 ? `Pod set ${one.name}: ` : ""}{one.count} pods of {Object.entries(one.perPod).filter(([name]) => name !== "pods").map(([name, amount]) => `${amount} ${called(name)}`).join(", ")}</caption>
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
      {answer.victims.length > 0 && <p>It would evict: {answer.victims.map((one) => `${one.job || one.workload || "somebody else's"} (priority ${one.priority})`).join(", ")}.</p>}
      <RoomTable room={answer.room} count={pods} />
      {answer.relief && <ReliefText relief={answer.relief} />}
    </article>
  );
}
