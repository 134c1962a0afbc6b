"""Searches for better choices of domains than the first greedy one, within a budget of work.

1. `descent` goes down greedily, and gives the answer that stands when nothing better is found.
2. `exact` asks step by step whether one domain fewer would do: a knapsack over the tree. It counts its work in cells,
   and gives up when the budget is spent.
3. `gather` looks for choices in fewer of the wider domains.
4. `unopened` leaves an idle rack whole where one in use takes the pods; `cliques` keeps ComputeDomains apart.
"""
