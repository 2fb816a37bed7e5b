//! Objects with the objects that they own.

use std::collections::{HashMap, HashSet};

use proto::graph::{Branch, Node, Tree};

use crate::{access::Access, entry::Entry, graph::Graph, ownership::MAX_DEPTH, query::Query};

/// The most objects of one tree.
const MAX_NODES: usize = 5000;

impl Graph {
    /// Returns the objects that a query selects, with all visible objects that they own. A selected object below another one is
    /// not repeated.
    pub fn tree(&self, query: &Query, access: &Access) -> Tree {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (slot, entry) in self.entries().filter(|(_, entry)| access.sees_entry(entry)) {
            // An object with several owners is shown below the first one.
            let owner = self.owners(entry).into_iter().find(|&owner| access.sees_entry(self.entry(owner)));
            if let Some(owner) = owner {
                children.entry(owner).or_default().push(slot);
            }
        }
        let selected = self.select(query, access);
        let is_selected: HashSet<u32> = selected.iter().copied().collect();
        let roots =
            selected.iter().filter(|&&slot| !self.has_ancestor(slot, &is_selected, access, |_, _| true));
        let mut builder = TreeBuilder { graph: self, access, children, shown: HashSet::new(), omitted: 0 };
        let mut branches: Vec<Branch> = roots.filter_map(|&slot| builder.branch(slot, 0)).collect();
        // Objects that own each other have no root.
        branches.extend(selected.iter().filter_map(|&slot| builder.branch(slot, 0)));
        Tree { roots: branches, omitted: builder.omitted, partial: self.partial(query, access) }
    }

    /// Returns whether one of the visible owners of an object, or of their owners, is in a set. Only owners count that lead further, which
    /// a function decides about an owner and the object that it owns.
    pub(crate) fn has_ancestor(
        &self,
        slot: u32,
        set: &HashSet<u32>,
        access: &Access,
        leads: impl Fn(&Entry, &Entry) -> bool,
    ) -> bool {
        let mut visited = HashSet::from([slot]);
        let mut next = vec![slot];
        for _ in 0..MAX_DEPTH {
            let owners = next.iter().flat_map(|&slot| {
                let entry = self.entry(slot);
                let owners = self.owners(entry).into_iter();
                owners.filter(|&owner| leads(self.entry(owner), entry)).collect::<Vec<_>>()
            });
            let owners = owners.filter(|&owner| access.sees_entry(self.entry(owner)));
            let above: Vec<u32> = owners.filter(|owner| visited.insert(*owner)).collect();
            if above.iter().any(|owner| set.contains(owner)) {
                return true;
            }
            if above.is_empty() {
                return false;
            }
            next = above;
        }
        false
    }
}

struct TreeBuilder<'a> {
    graph: &'a Graph,
    access: &'a Access,
    children: HashMap<u32, Vec<u32>>,
    /// The objects that are in the tree already, so that a cycle ends.
    shown: HashSet<u32>,
    omitted: u64,
}

impl TreeBuilder<'_> {
    fn branch(&mut self, slot: u32, depth: usize) -> Option<Branch> {
        if self.shown.contains(&slot) {
            return None;
        }
        if depth == MAX_DEPTH || self.shown.len() == MAX_NODES {
            self.omitted += 1;
            return None;
        }
        self.shown.insert(slot);
        let mut below = self.children.remove(&slot).unwrap_or_default();
        below.sort_by_cached_key(|&child| self.graph.sort_key(child));
        let children = below.into_iter().filter_map(|child| self.branch(child, depth + 1)).collect();
        let message = self.graph.message(self.graph.entry(slot), self.access);
        Some(Branch { node: Node { message, ..self.graph.node(slot, self.access) }, children })
    }
}
