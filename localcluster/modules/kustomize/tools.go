//go:build tools

// Package kustomize pins the kustomize that the tests of the overlays run.
package kustomize

import _ "sigs.k8s.io/kustomize/kustomize/v5"
