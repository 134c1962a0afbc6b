"""CA and serving certificates of the webhook: made on first start, kept in one Secret, rotated with no gap.

`authority` decides and signs (pure: `now` is an argument), `manager` keeps Secret and caBundle right, `tls` serves.
"""
