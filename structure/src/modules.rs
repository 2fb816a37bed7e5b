//! The modules of a crate, with the names that each of them declares, imports and mentions.

use proc_macro2::{TokenStream, TokenTree};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::{
    Attribute, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, UseTree, Visibility,
    visit::{self, Visit},
};

/// The names of a path, such as `["crate", "proxy", "handle"]`.
pub type Names = Vec<String>;

/// The first of the names of `::krate::Item`.
pub(crate) const EXTERNAL: &str = "";

/// A module without its tests: a file, or a part of a file.
pub struct Module {
    /// The names from the root of the crate on; none for the root.
    pub path: Names,
    pub file: PathBuf,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    /// The items that the module declares.
    pub(crate) items: BTreeSet<String>,
    /// The structs, enums, traits and aliases of types that are `pub`.
    pub public_types: Vec<String>,
    /// The names of imports, with the paths that they stand for.
    pub(crate) imports: BTreeMap<String, Names>,
    /// The paths of `use path::*`.
    pub(crate) globs: Vec<Names>,
    /// The paths of imports and of code.
    pub(crate) mentions: BTreeSet<Names>,
}

/// Reads the modules of a crate from its first file on.
pub(crate) fn read(root: &Path) -> Vec<Module> {
    let mut modules = Vec::new();
    read_file(&mut modules, root, root.parent().expect("a file is in a folder"), Names::new(), None);
    modules
}

/// `folder` has the files of the children.
fn read_file(modules: &mut Vec<Module>, file: &Path, folder: &Path, path: Names, parent: Option<usize>) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let source = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    read_items(modules, &source.items, (file, folder), path, parent);
}

fn read_items(
    modules: &mut Vec<Module>,
    items: &[Item],
    (file, folder): (&Path, &Path),
    path: Names,
    parent: Option<usize>,
) -> usize {
    let id = modules.len();
    let mut module = Module {
        path,
        file: file.to_owned(),
        parent,
        children: BTreeMap::new(),
        items: items.iter().filter(|item| !is_test(item)).filter_map(declared_name).collect(),
        public_types: items.iter().filter(|item| !is_test(item)).filter_map(public_type).collect(),
        imports: BTreeMap::new(),
        globs: Vec::new(),
        mentions: BTreeSet::new(),
    };
    items.iter().for_each(|item| Reader(&mut module).visit_item(item));
    let path = module.path.clone();
    modules.push(module);
    for child in items.iter().filter(|item| !is_test(item)) {
        let Item::Mod(child) = child else { continue };
        let name = child.ident.to_string();
        let next = modules.len();
        let path = [path.as_slice(), std::slice::from_ref(&name)].concat();
        let folder = folder.join(&name);
        if let Some((_, items)) = &child.content {
            read_items(modules, items, (file, &folder), path, Some(id));
        } else {
            let beside = folder.with_extension("rs");
            let inside = folder.join("mod.rs");
            read_file(modules, if beside.exists() { &beside } else { &inside }, &folder, path, Some(id));
        }
        modules[id].children.insert(name, next);
    }
    id
}

/// The name that an item declares, unless it is a module.
fn declared_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// The name of a type that is `pub`.
fn public_type(item: &Item) -> Option<String> {
    let (name, visibility) = match item {
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        _ => return None,
    };
    matches!(visibility, Visibility::Public(_)).then(|| name.to_string())
}

fn is_test(item: &Item) -> bool {
    let attributes = match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return false,
    };
    is_for_tests(attributes)
}

/// Returns whether a `cfg` has the condition `test`, alone or as one of several.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let condition = attribute.meta.require_list().expect("cfg has a condition").tokens.to_string();
        let mut words = condition.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.clone().any(|word| word == "test") && !words.any(|word| word == "not")
    })
}

/// Collects the paths of the items of a module, apart from those of its children.
struct Reader<'a>(&'a mut Module);

impl Reader<'_> {
    fn import(&mut self, tree: &UseTree, mut prefix: Names) {
        let name = match tree {
            UseTree::Path(tree) => {
                prefix.push(tree.ident.to_string());
                return self.import(&tree.tree, prefix);
            }
            UseTree::Group(tree) => {
                return tree.items.iter().for_each(|tree| self.import(tree, prefix.clone()));
            }
            UseTree::Glob(_) => return self.0.globs.push(prefix),
            UseTree::Name(tree) if tree.ident == "self" => prefix.last().cloned().unwrap_or_default(),
            UseTree::Name(tree) => {
                prefix.push(tree.ident.to_string());
                tree.ident.to_string()
            }
            UseTree::Rename(tree) => {
                if tree.ident != "self" {
                    prefix.push(tree.ident.to_string());
                }
                tree.rename.to_string()
            }
        };
        self.0.mentions.insert(prefix.clone());
        self.0.imports.insert(name, prefix);
    }

    /// Finds the paths in the tokens of a macro or an attribute, also those in its strings.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) if colons == 2 && !path.is_empty() => {
                    path.push(name.to_string());
                    colons = 0;
                }
                token => {
                    self.mention(std::mem::take(&mut path));
                    match token {
                        TokenTree::Ident(name) if colons != 2 => path.push(name.to_string()),
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        TokenTree::Literal(text) => self.text(&text.to_string()),
                        TokenTree::Ident(_) | TokenTree::Punct(_) => {}
                    }
                    colons = 0;
                }
            }
        }
        self.mention(path);
    }

    /// Serde takes the paths of functions as strings.
    fn text(&mut self, literal: &str) {
        let path = literal.trim_matches('"');
        if path.contains("::")
            && let Ok(path) = syn::parse_str::<syn::Path>(path)
        {
            self.visit_path(&path);
        }
    }

    fn mention(&mut self, path: Names) {
        if path.len() > 1 {
            self.0.mentions.insert(path);
        }
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_test(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, _: &'a ItemMod) {}

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.import(
            &item.tree,
            item.leading_colon.as_ref().map(|_| EXTERNAL.to_owned()).into_iter().collect(),
        );
    }

    fn visit_visibility(&mut self, _: &'a Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let external = path.leading_colon.as_ref().map(|_| EXTERNAL.to_owned());
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        self.0.mentions.insert(external.into_iter().chain(names).collect());
        visit::visit_path(self, path);
    }

    fn visit_impl_item(&mut self, item: &'a ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_macro(&mut self, item: &'a Macro) {
        self.visit_path(&item.path);
        self.tokens(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }
}
