//! The shape of the code: between the folders of a package, imports run one way.
//!
//! A folder is a part of the program. Two folders that import each other would be one part with two names.
//! Within a folder files may import each other, and a folder's `mod.rs` may import its contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

const PACKAGES: [&str; 7] = [
    "efa-core",
    "efa-emu",
    "efa-emu/verbs",
    "efa-hw",
    "conformance",
    "conformance/cli",
    "conformance/interop",
];

/// A module's path below the crate's root.
type Module = Vec<String>;

#[test]
fn no_circle_of_imports_between_folders() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut circles = Vec::new();
    for package in PACKAGES {
        let source = root.join(package).join("src");
        let arrows = arrows(&source);
        for circle in circles_of(&arrows) {
            let mut text = format!("{package}:");
            for ((from, to), example) in &arrows {
                if circle.contains(from) && circle.contains(to) {
                    text += &format!("\n  {from} -> {to}: {example}");
                }
            }
            circles.push(text);
        }
    }
    assert!(circles.is_empty(), "\n{}", circles.join("\n"));
}

#[test]
fn circles_are_found() {
    let arrow = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), String::new());
    let straight = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("a", "c")]);
    assert!(circles_of(&straight).is_empty());
    let round = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("c", "b")]);
    let expected = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
    assert_eq!(circles_of(&round), [expected]);
}

/// The imports between folders that do not contain each other, each with an example. Deep folders are
/// compared where their paths part: `a/b/x` imports from `a/c/y` make an arrow from `a/b` to `a/c`.
fn arrows(source: &Path) -> BTreeMap<(String, String), String> {
    let files = rust_files(source);
    let modules: BTreeMap<Module, &PathBuf> = files
        .iter()
        .map(|file| (module_of(source, file), file))
        .collect();
    assert!(modules.len() > 5, "{}: few sources", source.display());
    let mut arrows = BTreeMap::new();
    for (module, file) in &modules {
        let text = fs::read_to_string(file).expect("sources are text");
        let parsed =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut imports = Imports::default();
        imports.visit_file(&parsed);
        for import in imports.paths {
            let Some(target) = resolve(module, &import, &modules) else {
                continue;
            };
            let (from, to) = (folder(source, file), folder(source, modules[&target]));
            if let Some(arrow) = parting(&from, &to) {
                let shown = file.strip_prefix(source).unwrap_or(file).display();
                arrows
                    .entry(arrow)
                    .or_insert_with(|| format!("{shown}: {}", import.join("::")));
            }
        }
    }
    arrows
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)
        .expect("a folder of sources")
        .flatten()
    {
        let path = entry.path();
        let name = path.file_stem().unwrap_or_default();
        // Tests may import everything.
        if name == "tests" || name.to_string_lossy().ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn module_of(source: &Path, file: &Path) -> Module {
    let path = file.strip_prefix(source).expect("below the sources");
    let mut module: Module = path
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if module
        .last()
        .is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main"))
    {
        module.pop();
    }
    module
}

fn folder(source: &Path, file: &Path) -> Module {
    let path = file.strip_prefix(source).expect("below the sources");
    let folder = path.parent().into_iter().flat_map(Path::iter);
    folder
        .map(|part| part.to_string_lossy().into_owned())
        .collect()
}

/// The two folders at which the paths part, if neither contains the other.
fn parting(from: &Module, to: &Module) -> Option<(String, String)> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    if common == from.len() || common == to.len() {
        return None;
    }
    Some((from[..=common].join("/"), to[..=common].join("/")))
}

/// The module in this crate that contains the item of an import in `module`.
fn resolve(
    module: &Module,
    import: &[String],
    modules: &BTreeMap<Module, &PathBuf>,
) -> Option<Module> {
    let (first, mut rest) = import.split_first()?;
    let mut target = match first.as_str() {
        "crate" => Module::new(),
        "self" => module.clone(),
        "super" => {
            let mut parent = module.clone();
            parent.pop();
            while let Some((_, further)) = rest.split_first().filter(|(next, _)| *next == "super") {
                parent.pop();
                rest = further;
            }
            parent
        }
        child => {
            let mut own = module.clone();
            own.push(child.to_owned());
            modules.contains_key(&own).then_some(own)?
        }
    };
    target.extend(rest.iter().cloned());
    while !modules.contains_key(&target) {
        target.pop()?;
    }
    (!target.is_empty() && target != *module).then_some(target)
}

/// The paths in a file outside of tests.
#[derive(Default)]
struct Imports {
    paths: BTreeSet<Vec<String>>,
}

impl Imports {
    fn add_tree(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        match tree {
            UseTree::Path(next) => {
                path.push(next.ident.to_string());
                self.add_tree(&next.tree, path);
                path.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(tree, path);
                }
            }
            UseTree::Name(name) => self.add_leaf(&name.ident.to_string(), path),
            UseTree::Rename(name) => self.add_leaf(&name.ident.to_string(), path),
            UseTree::Glob(_) => {
                self.paths.insert(path.clone());
            }
        }
    }

    fn add_leaf(&mut self, name: &str, path: &[String]) {
        let mut path = path.to_vec();
        path.push(name.to_owned());
        self.paths.insert(path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|argument| argument == "test")
    })
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(module) => &module.attrs,
            Item::Use(import) => &import.attrs,
            Item::Fn(function) => &function.attrs,
            Item::Impl(block) => &block.attrs,
            _ => return visit::visit_item(self, item),
        };
        if is_test(attributes) {
            return;
        }
        if let Item::Use(import) = item {
            self.add_tree(&import.tree, &mut Vec::new());
        }
        visit::visit_item(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if names.len() > 1 && matches!(names[0].as_str(), "crate" | "super" | "self") {
            self.paths.insert(names);
        }
        visit::visit_path(self, path);
    }
}

/// The sets of folders that can reach each other.
fn circles_of(arrows: &BTreeMap<(String, String), String>) -> Vec<BTreeSet<String>> {
    let folders: BTreeSet<_> = arrows.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached = |start: &String| {
        let mut seen = BTreeSet::new();
        let mut next = vec![start];
        while let Some(folder) = next.pop() {
            for (_, to) in arrows.keys().filter(|(from, _)| from == folder) {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<_, _> = folders
        .iter()
        .map(|folder| (*folder, reached(folder)))
        .collect();
    let mut circles = Vec::new();
    for folder in &folders {
        let circle: BTreeSet<_> = folders
            .iter()
            .filter(|other| reach[*folder].contains(**other) && reach[**other].contains(*folder))
            .map(|folder| (*folder).clone())
            .collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}
