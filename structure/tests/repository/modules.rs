//! The modules of a folder do not import each other in a circle.
//!
//! The rule holds for the children of each module, from the root of each crate down. A child stands for all modules below it: if
//! `proxy::request` names an item of `forward::attempt`, that is an import of `forward` by `proxy`. An item counts where it is
//! declared, not where `pub use` exports it. A child may name what the file of its parent declares, because a folder is a module in
//! several files. Tests do not count.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeSet;
use structure::{
    circles::circles,
    references::{ModuleReference, SourceTree},
    root,
    workspace::packages,
};

/// Imports that close a circle: the crate, the module, and the module whose item it names. The list may only get shorter.
const CLOSE_A_CIRCLE: &[(&str, &str, &str)] = &[
    ("agentk-gitops", "events", "worker"),
    ("agentk-notify", "argocd", "lane"),
    ("agentk-notify", "flux", "lane"),
    ("agentk-notify", "objects", "lane"),
    ("agentk-notify", "record", "lane"),
    ("agentk-notify", "repository", "lane"),
    ("kas-core", "agents::receptive::slot", "agents::admission"),
    ("kas-notify", "access", "feed"),
    ("kas-testing", "world", "fleet"),
    ("testing", "simulator::pods", "simulator::cluster"),
    ("testing", "simulator::request", "simulator::cluster"),
    ("tunnel", "send_body", "body"),
];

/// Reads the libraries and programs of all crates.
fn source_trees() -> Vec<(String, SourceTree)> {
    let packages = packages();
    let roots = packages.iter().flat_map(|package| package.roots().map(|root| (package.name.clone(), root)));
    roots.map(|(name, root)| (name, SourceTree::read(root))).collect()
}

/// Returns whether the list has an import.
fn is_listed(krate: &str, tree: &SourceTree, reference: &ModuleReference) -> bool {
    let (from, to) = (tree.name(reference.from), tree.name(reference.to));
    CLOSE_A_CIRCLE.contains(&(krate, &from, &to))
}

/// `file → module`, with the file of the import relative to the root of the repository.
fn line(tree: &SourceTree, reference: &ModuleReference) -> String {
    let file = tree.modules[reference.from].file.strip_prefix(root()).unwrap();
    format!("{} → {}", file.display(), tree.name(reference.to))
}

/// One test reads the sources once for both rules.
#[test]
fn only_listed_imports_close_circles_of_modules() {
    let mut count = 0;
    let mut found = Vec::new();
    let mut needed = BTreeSet::new();
    for (krate, tree) in source_trees() {
        let references = tree.references();
        count += references.len();
        let (listed, others): (Vec<_>, Vec<_>) =
            references.into_iter().partition(|reference| is_listed(&krate, &tree, reference));
        for circle in circles(&tree, &others) {
            found.push(circle.iter().map(|reference| line(&tree, reference)).collect::<Vec<_>>());
        }
        for reference in listed {
            let references = [others.as_slice(), &[reference]].concat();
            if !circles(&tree, &references).is_empty() {
                needed.insert((krate.clone(), tree.name(reference.from), tree.name(reference.to)));
            }
        }
    }
    assert!(found.is_empty(), "the imports of each circle: {found:#?}");
    assert!(count > 2_500, "the test finds too few imports: {count}");
    let is_needed = |(krate, from, to): &(&str, &str, &str)| {
        needed.contains(&((*krate).to_owned(), (*from).to_owned(), (*to).to_owned()))
    };
    let unneeded: Vec<_> = CLOSE_A_CIRCLE.iter().filter(|entry| !is_needed(entry)).collect();
    assert!(unneeded.is_empty(), "remove from the list: {unneeded:#?}");
}
