// The door: a token of one's own, kept in this page's memory until it is closed.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

export function Login({ keyed, error, enter }: { keyed: boolean; error: string; enter: (token: string) => void }): JSX.Element {
  const [token, set] = useState("");
  return (
    <main class="login">
      <form onSubmit={(event) => { event.preventDefault(); if (token.trim()) enter(token.trim()); }}>
        <h1>Topogate</h1>
        <label for="token">{keyed ? "The key that topogate web printed" : "Your Kubernetes token"}</label>
        <input id="token" type="password" value={token} onInput={(event) => set(event.currentTarget.value)} autocomplete="off" spellcheck={false} autofocus />
        {error && <p class="wrong" role="alert">{error}</p>}
        <button type="submit" class="main">Open</button>
        <p class="dim small">
          {keyed ? "It is the end of the link, after key=." : <>Such as <code>kubectl create token NAME --namespace NAMESPACE</code> makes.</>} It stays in the memory of this page, and is gone when the page is.
          {!keyed && " You see what it may list: nodes, and pods and workloads of namespaces."}
        </p>
      </form>
    </main>
  );
}
