//go:build tools

// Package kwok pins the simulated-node controller that localcluster builds.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
