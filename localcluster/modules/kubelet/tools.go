//go:build tools

// Package kubelet pins the kubelet that localcluster builds.
package kubelet

import _ "k8s.io/kubernetes/cmd/kubelet"
