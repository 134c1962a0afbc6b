"""Expressions in CEL as Kubernetes evaluates them in selectors of devices.

The language of github.com/google/cel-go with the libraries and the limits of Kubernetes 1.37
(k8s.io/apiserver/pkg/cel). An expression that is not supported is refused by name, and never guessed.

1. `parser` makes a tree (`syntax`) of a text, `literals` values of its literals.
2. `compiler` checks `types`, resolves `calls` to `overloads` and expands `macros`: the result is a closure.
3. A `frame` runs it on one device, counts what Kubernetes charges, and stops at the limits.
4. `selectors` keeps programs and their answers, one for all devices that look the same to an expression.

`strings`, `kubernetes` and `versions` have the functions; `values` compares; `errors` are those of expressions.
"""
