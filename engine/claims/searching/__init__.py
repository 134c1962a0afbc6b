"""The search for devices, and what stands against one: capacities, counters, constraints, selectors."""
