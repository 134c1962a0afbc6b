"""CA and serving certificates of the webhook: made on first start, kept in one Secret, rotated with no gap.

1. `manager` reads the webhook configurations (`trust`) and the Secret (`store`), round after round.
2. `rotation` decides the next content of the Secret, and which certificate may be served. `authority` makes and signs
   certificates. Both are pure: `now` is an argument.
3. `manager` writes the Secret and the caBundle where they differ, each guarded by its resourceVersion.
4. `tls` serves the new certificate, without a gap.

`foreign` has the rounds where cert-manager makes the certificates; `options` says where they live.
"""
