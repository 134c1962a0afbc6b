#!/usr/bin/env bash
# Kueue 0.19.2: three Jobs of two ClusterQueues take turns evicting one another, for as long as all three are there.
#
# Good guess: with preemption by priority, and no Job that comes or goes, evictions come to an end, and one of the three runs on.
# What happens: the ClusterQueues q (4 gpu, 4 nic) and b (0 gpu, 4 nic) share a cohort. Each takes back its nominal quota from any
#   priority (reclaimWithinCohort: Any), evicts lower priorities of its own (withinClusterQueue: LowerPriority), and evicts lower
#   priorities in order to borrow (borrowWithinCohort: LowerPriority). No two of three Jobs fit together:
#     low    in q, priority 486: 3 gpu, 1 nic   within the nominal quota of q
#     high   in q, priority 626: 2 gpu, 6 nic   borrows nic
#     other  in b, priority 776: 4 gpu, 6 nic   borrows gpu and nic
#   low has its nominal quota taken back from other, high evicts low as the lower priority of its own queue, other evicts high as
#   the lower priority of the cohort, and so on. Each step follows the documented rules. This is a surprise of the design: nothing
#   crashes or hangs, and Kueue works on and reports each eviction. The three Jobs lose their work again and again.
#
# It builds etcd, kube-apiserver and kubectl from the versions that localcluster/modules/controlplane pins, and Kueue from the
# Go module proxy, into a temporary folder (Go 1.26 or newer, openssl, jq, Python; ten minutes where nothing is in Go's caches), and
# runs them without Topogate, with the CRDs, webhooks and rights of Kueue's release. No Job controller runs there, so there are no
# pods, and Kueue needs none to admit and evict. The script ends with status 1 if it sees something else than is said above.
set -euo pipefail

KUEUE=0.19.2
LEAST=3 # evictions of each Job, before and after which it looks whether they go on
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
bin=$work/bin
mkdir -p "$bin" "$work/certs"
pids=()
stop() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
until_done() { # seconds, command: tried again until it succeeds
  local deadline=$((SECONDS + $1)); shift
  until "$@" >"$work/tried" 2>&1; do
    ((SECONDS < deadline)) || fail "$*: $(tail -c 600 "$work/tried")"
    sleep 0.5
  done
}

# --- programs -----------------------------------------------------------------------------------------------------------
export GOWORK=off
echo "building etcd, kube-apiserver, kubectl and Kueue $KUEUE"
# The flags are those of localcluster/programs/build.py, so that Go's own build cache serves both.
base=k8s.io/component-base/version
flags=(-trimpath -gcflags=all=-dwarf=false)
for cold in k8s.io/client-go/applyconfigurations k8s.io/client-go/informers k8s.io/client-go/kubernetes k8s.io/kubectl \
  k8s.io/kubernetes/pkg/generated sigs.k8s.io/kustomize; do
  flags+=("-gcflags=$cold/...=-dwarf=false -N -l")
done
flags+=(-ldflags "-s -w -X $base.gitVersion=v1.37.1 -X $base.gitMajor=1 -X $base.gitMinor=37")
for package in go.etcd.io/etcd/server/v3:etcd k8s.io/kubernetes/cmd/kube-apiserver:kube-apiserver \
  k8s.io/kubernetes/cmd/kubectl:kubectl; do
  (cd "$here/../localcluster/modules/controlplane" &&
    go build "${flags[@]}" -o "$bin/${package#*:}" "${package%:*}")
done
GOBIN=$bin go install "sigs.k8s.io/kueue/cmd/kueue@v$KUEUE"
module=$(cd "$work" && go mod download -json "sigs.k8s.io/kueue@v$KUEUE" | jq -r .Dir)

# --- control plane ------------------------------------------------------------------------------------------------------
read -r etcd peer api hook health < <(python3 -c 'import socket
found = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
print(*(one.getsockname()[1] for one in found))')
"$bin/etcd" --data-dir "$work/etcd" --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
  --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
  --initial-cluster "default=http://127.0.0.1:$peer" >"$work/etcd.log" 2>&1 &
pids+=($!)
openssl genrsa -out "$work/sa.key" 2048 2>/dev/null
openssl rsa -in "$work/sa.key" -pubout -out "$work/sa.pub" 2>/dev/null
echo "local-only,admin,admin,system:masters" >"$work/tokens"
"$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd" --bind-address 127.0.0.1 --advertise-address 127.0.0.1 \
  --secure-port "$api" --cert-dir "$work/api" --endpoint-reconciler-type=none --authorization-mode=RBAC \
  --token-auth-file "$work/tokens" --service-cluster-ip-range 10.0.0.0/24 --disable-admission-plugins=ServiceAccount \
  --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$work/sa.pub" \
  --service-account-signing-key-file "$work/sa.key" >"$work/apiserver.log" 2>&1 &
pids+=($!)
cat >"$work/kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "https://127.0.0.1:$api", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: local-only}}]
contexts: [{name: here, context: {cluster: here, user: admin}}]
current-context: here
CONFIG
export KUBECONFIG=$work/kubeconfig
k=$bin/kubectl
until_done 120 "$k" get --raw /readyz
until_done 60 "$k" get namespace default

# --- Kueue --------------------------------------------------------------------------------------------------------------
cat >"$work/config.yaml" <<CONFIG
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:$health"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: $hook, certDir: $work/certs}
leaderElection: {leaderElect: false}
featureGates: {VisibilityOnDemand: false}
integrations: {frameworks: [batch/job]}
CONFIG
# Its release, but for the Deployment: it runs here, so the Service of its webhooks is a name for this machine.
"$k" kustomize "$module/config/default" | python3 -c '
import re, sys
port, left_out = sys.argv[1], re.compile(r"^kind: (Deployment|APIService|Service)$", re.MULTILINE)
whole = [one for one in re.split(r"^---\n", sys.stdin.read(), flags=re.MULTILINE) if not left_out.search(one)]
print(re.sub(r"^( *)service:\n", r"\g<0>\g<1>  port: " + port + "\n", "---\n".join(whole), flags=re.MULTILINE))
' "$hook" >"$work/release.yaml"
"$k" apply --server-side -f "$work/release.yaml" >/dev/null
"$k" apply --server-side -f - >/dev/null <<SERVICE
apiVersion: v1
kind: Service
metadata: {name: kueue-webhook-service, namespace: kueue-system}
spec: {type: ExternalName, externalName: localhost}
SERVICE
"$bin/kueue" --config "$work/config.yaml" --kubeconfig "$KUBECONFIG" >"$work/kueue.log" 2>&1 &
kueue=$!
pids+=("$kueue")
certificate() { "$k" -n kueue-system get secret kueue-webhook-server-cert -o json | jq -er '.data["tls.key"]'; }
until_done 60 certificate
for name in ca.crt tls.crt tls.key; do
  "$k" -n kueue-system get secret kueue-webhook-server-cert -o json | jq -r --arg name "$name" '.data[$name] // empty' |
    base64 -d >"$work/certs/$name"
done

# --- two queues, three Jobs ---------------------------------------------------------------------------------------------
queue() { # name, gpu, nic
  cat <<QUEUE
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: $1}
spec:
  cohortName: top
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: Any, borrowWithinCohort: {policy: LowerPriority}}
  resourceGroups:
  - coveredResources: [example.com/gpu, example.com/nic]
    flavors:
    - name: plain
      resources: [{name: example.com/gpu, nominalQuota: $2}, {name: example.com/nic, nominalQuota: $3}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: $1, namespace: default}
spec: {clusterQueue: $1}
QUEUE
}
job() { # name, queue, priority, gpu, nic
  cat <<JOB
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: $1}
value: $3
---
apiVersion: batch/v1
kind: Job
metadata:
  name: $1
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: $2, kueue.x-k8s.io/priority-class: $1}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: example.com/none
        resources:
          requests: {example.com/gpu: $4, example.com/nic: $5}
          limits: {example.com/gpu: $4, example.com/nic: $5}
JOB
}
{
  printf 'apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: plain}\n'
  queue q 4 4
  queue b 0 4
} >"$work/queues.yaml"
until_done 60 "$k" apply -f "$work/queues.yaml"
holds() { # kind, condition, how many: whether so many of the kind have it
  [[ $("$k" get "$1.kueue.x-k8s.io" -o json | jq --arg type "$2" \
    '[.items[].status.conditions[]? | select(.type == $type and .status == "True")] | length') == "$3" ]]
}
until_done 60 holds clusterqueues Active 2
job low q 486 3 1 | "$k" apply -f - >/dev/null
until_done 60 holds workloads Admitted 1
{ job high q 626 2 6; job other b 776 4 6; } | "$k" apply -f - >/dev/null

# --- what is seen -------------------------------------------------------------------------------------------------------
evictions() { # of low, high and other, so far
  "$k" get workloads.kueue.x-k8s.io -o json | jq -r '[.items[] | {key: .metadata.ownerReferences[0].name,
    value: ([.status.schedulingStats.evictions[]?.count] | add // 0)}] | from_entries | "\(.low // 0) \(.high // 0) \(.other // 0)"'
}
beyond() { # numbers of evictions: whether each Job has more by now
  read -r low high other < <(evictions)
  ((low > $1 && high > $2 && other > $3))
}
began=$SECONDS
say() { echo "evictions after $((SECONDS - began)) s: low $low, high $high, other $other"; }
# Deadlines for a machine with much else to do: with little, a round of the three takes six seconds.
until_done 180 beyond $((LEAST - 1)) $((LEAST - 1)) $((LEAST - 1))
beyond 0 0 0 && say
for _ in 1 2; do
  before=("$low" "$high" "$other")
  sleep 10
  until_done 120 beyond "${before[@]}" # else the evictions have come to an end
  beyond 0 0 0 && say
done
"$k" get events --field-selector reason=Preempted -o json |
  jq -r '[.items[] | (.message // .note)] | unique | .[:3][] | "said: \(.)"'
kill -0 "$kueue" || fail "Kueue has ended: $(tail -n 3 "$work/kueue.log")"
"$k" get --raw "/readyz" >/dev/null || fail "the API server does not answer"
echo "as said above: the evictions of Kueue $KUEUE go on, and it works on"
