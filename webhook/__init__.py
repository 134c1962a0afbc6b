"""AdmissionReview in, JSON Patch out.

1. `listener` accepts, `connection` reads a review from the bytes of a connection, or leaves it to aiohttp (`answers`);
   `crowd` says which connections may stay.
2. `review` decodes it (`objects` are the fields that it reads) and encodes the answer. It never raises.
3. `memo` finds the decision for a template that was seen before.
4. `mutate` and `jobsets` decide: pure. `checks` refuses, `advice` warns, `changed_mind` follows a request that changed,
   `large` looks at objects beyond the usual size.
5. The patch adds gate and annotations where they are missing, so a second pass adds nothing.

`levels` knows the levels of flavors and queues; `settings` judges new settings; `server` has ports, readiness and
drain; `metrics` counts.
"""
