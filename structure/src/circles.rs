//! Circles of references between the modules of a folder.

use crate::references::{ModuleReference, SourceTree};
use std::collections::{BTreeMap, BTreeSet};

/// The references between two children of one module: of the children, or of modules below them.
type Siblings = BTreeMap<usize, BTreeMap<usize, Vec<ModuleReference>>>;

/// The references that make circles, grouped: in each group, each module reaches each other one.
pub fn circles(tree: &SourceTree, references: &[ModuleReference]) -> Vec<Vec<ModuleReference>> {
    let mut circles = Vec::new();
    for siblings in levels(tree, references).values() {
        let mut done = BTreeSet::new();
        for module in siblings.keys() {
            let circle: BTreeSet<usize> = reachable(siblings, *module)
                .into_iter()
                .filter(|other| reachable(siblings, *other).contains(module))
                .collect();
            if circle.is_empty() || !done.insert(circle.clone()) {
                continue;
            }
            let edges = circle.iter().flat_map(|from| &siblings[from]);
            let within = edges.filter(|(to, _)| circle.contains(to));
            circles.push(within.flat_map(|(_, references)| references).copied().collect());
        }
    }
    circles
}

/// The references between siblings, by the module whose children they are.
fn levels(tree: &SourceTree, references: &[ModuleReference]) -> BTreeMap<usize, Siblings> {
    let mut levels: BTreeMap<usize, Siblings> = BTreeMap::new();
    for reference in references {
        let (from, to) = (ancestors(tree, reference.from), ancestors(tree, reference.to));
        if from.starts_with(&to) || to.starts_with(&from) {
            continue;
        }
        let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        let siblings = levels.entry(from[common - 1]).or_default();
        siblings.entry(from[common]).or_default().entry(to[common]).or_default().push(*reference);
    }
    levels
}

/// The modules from the root of the crate to a module, which is the last one.
fn ancestors(tree: &SourceTree, module: usize) -> Vec<usize> {
    let mut path: Vec<usize> =
        std::iter::successors(Some(module), |module| tree.modules[*module].parent).collect();
    path.reverse();
    path
}

/// The modules that a module refers to, directly or by others; the module itself if it is in a circle.
fn reachable(siblings: &Siblings, module: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(from) = next.pop() {
        let targets = siblings.get(&from).into_iter().flat_map(BTreeMap::keys);
        next.extend(targets.filter(|to| reached.insert(**to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    /// Returns the imports that make circles in a crate with these files, as `from → to`.
    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let tree = SourceTree::read(&folder.path().join(Path::new("lib.rs")));
        let line = |reference: ModuleReference| {
            format!("{} → {}", tree.name(reference.from), tree.name(reference.to))
        };
        circles(&tree, &tree.references())
            .into_iter()
            .map(|circle| circle.into_iter().map(line).collect())
            .collect()
    }

    /// Returns the imports that make circles between the modules `one` and `other` of a folder.
    fn circles_between(one: &str, other: &str) -> Vec<Vec<String>> {
        circles_of(&[
            ("lib.rs", "mod folder;"),
            ("folder.rs", "mod one; mod other; pub use one::One; pub struct OfTheParent;"),
            ("folder/one.rs", one),
            ("folder/other.rs", other),
        ])
    }

    const CIRCLE: [&str; 2] = ["folder::one → folder::other", "folder::other → folder::one"];

    #[test]
    fn imports_of_siblings_by_each_other_are_a_circle() {
        let imports = [
            ("use super::other::Other; pub struct One;", "use super::one::One; pub struct Other;"),
            (
                "use crate::folder::{other::{self, Other}}; pub struct One;",
                "fn f() { super::one::One::new() }",
            ),
            ("use crate::{folder::{other}}; pub struct One;", "use super::*; fn f(one: One) {}"),
            ("use super::super::folder::other::made_by_macro; pub struct One;", "use super::One as Renamed;"),
            (
                "#[serde(with = \"super::other::text\")] pub struct One;",
                "fn f() { vec![super::one::One {}] }",
            ),
        ];
        for (one, other) in imports {
            assert_eq!(circles_between(one, other), [CIRCLE], "{one} {other}");
        }
    }

    #[test]
    fn imports_in_one_direction_are_no_circle() {
        let none: [Vec<String>; 0] = [];
        assert_eq!(circles_between("pub struct One;", "use super::One;"), none);
        assert_eq!(circles_between("use super::OfTheParent; pub struct One;", "use super::One;"), none);
        let test = "#[cfg(test)] mod tests { use crate::folder::other::Other; } pub struct One;";
        assert_eq!(circles_between(test, "use super::One;"), none);
    }

    #[test]
    fn module_stands_for_the_modules_below_it() {
        let circles = circles_of(&[
            ("lib.rs", "mod one; mod other;"),
            ("one.rs", "mod inner;"),
            ("one/inner.rs", "use crate::other; pub struct Inner;"),
            ("other.rs", "mod inner { use crate::one::inner::Inner; }"),
        ]);
        assert_eq!(circles, [["one::inner → other", "other::inner → one::inner"]]);
    }
}
