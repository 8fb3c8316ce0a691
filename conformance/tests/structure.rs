//! The shape of the code: between the folders of a package, imports run one way.
//!
//! A folder is a part of the program. Two folders that import each other would be one part with two names.
//! The same holds for a folder and the files beside it, which count as one part (`a/*` are the files of the
//! folder `a`). Within a folder files may import each other. A re-export is no import: an item that is
//! imported by way of it is looked up where it is defined. Modules of tests (`#[cfg(test)]`) may import
//! everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Ident, Item, ItemMod, Lit, Meta, UseTree, Visibility};

const PACKAGES: [&str; 9] = [
    "efa-core",
    "efa-emu",
    "efa-emu/bridge",
    "efa-emu/verbs",
    "efa-hw",
    "efa-hw/tap",
    "conformance",
    "conformance/cli",
    "conformance/interop",
];

/// A module's path below the crate's root.
type Module = Vec<String>;

/// The imports from one folder to another, by the two folders.
type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

#[test]
fn no_circle_of_imports_between_folders() {
    let root = efa_testing::workspace::root();
    let mut circles = Vec::new();
    for package in PACKAGES {
        let source = root.join(package).join("src");
        let arrows = arrows(&source);
        for circle in circles_of(&arrows) {
            let mut text = format!("{package}:");
            for ((from, to), imports) in &arrows {
                if circle.contains(from) && circle.contains(to) {
                    text += &format!("\n  {from} -> {to}");
                    for import in imports {
                        text += &format!("\n    {import}");
                    }
                }
            }
            circles.push(text);
        }
    }
    assert!(circles.is_empty(), "\n{}", circles.join("\n"));
}

#[test]
fn a_folder_and_the_files_beside_it_are_told_apart() {
    let module = |path: &str| -> Module { path.split('/').map(str::to_owned).collect() };
    let parting = |from, to| parting(&module(from), &module(to));
    let arrow = |from: &str, to: &str| Some((from.to_owned(), to.to_owned()));
    assert_eq!(parting("a/b", "a/b"), None);
    assert_eq!(parting("a/b/c", "a/d"), arrow("a/b", "a/d"));
    assert_eq!(parting("a/b/c", "a"), arrow("a/b", "a/*"));
    assert_eq!(parting("a", "a/b/c"), arrow("a/*", "a/b"));
}

#[test]
fn circles_are_found() {
    let arrow = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), BTreeSet::new());
    let straight = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("a", "c")]);
    assert!(circles_of(&straight).is_empty());
    let round = BTreeMap::from([arrow("a", "b"), arrow("b", "c"), arrow("c", "b")]);
    let expected = BTreeSet::from(["b".to_owned(), "c".to_owned()]);
    assert_eq!(circles_of(&round), [expected]);
}

/// The imports between folders, with what is imported where. Deep folders are compared where their paths part:
/// `a/b/x` imports from `a/c/y` make an arrow from `a/b` to `a/c`, and from `a/z` one to `a/*`.
fn arrows(source: &Path) -> Arrows {
    let files = rust_files(source);
    let modules: BTreeMap<Module, &PathBuf> = files
        .iter()
        .map(|file| (module_of(source, file), file))
        .collect();
    assert!(modules.len() > 5, "{}: few sources", source.display());
    let mut all_imports: BTreeMap<&Module, Imports> = modules
        .iter()
        .map(|(module, file)| (module, imports_of(file)))
        .collect();
    // Tests may import everything.
    let tests: BTreeSet<PathBuf> = all_imports
        .values_mut()
        .flat_map(|imports| std::mem::take(&mut imports.tests))
        .collect();
    all_imports.retain(|module, _| {
        let file = modules[*module];
        !tests.contains(file) && !tests.contains(&file.with_extension(""))
    });
    let mut arrows = Arrows::new();
    for (module, imports) in &all_imports {
        let file = modules[*module];
        for import in &imports.paths {
            let Some(target) = definition(module, import, &modules, &all_imports) else {
                continue;
            };
            let (from, to) = (folder(source, file), folder(source, modules[&target]));
            if let Some(arrow) = parting(&from, &to) {
                let shown = file.strip_prefix(source).unwrap_or(file).display();
                let import = format!("{shown}: {}", import.join("::"));
                arrows.entry(arrow).or_default().insert(import);
            }
        }
    }
    arrows
}

fn imports_of(file: &Path) -> Imports {
    let text = fs::read_to_string(file).expect("sources are text");
    let parsed =
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut imports = Imports::default();
    imports.visit_file(&parsed);
    imports.tests = parsed
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Mod(module) if module.content.is_none() && is_test(&module.attrs) => {
                Some(file_of(module, file))
            }
            _ => None,
        })
        .collect();
    imports
}

/// The file of a module that `declared_in` declares.
fn file_of(module: &ItemMod, declared_in: &Path) -> PathBuf {
    let is_folder = matches!(
        declared_in.file_stem().and_then(|stem| stem.to_str()),
        Some("mod" | "lib" | "main")
    );
    let folder = declared_in.parent().expect("files are in folders");
    let stated = module.attrs.iter().find_map(|attribute| {
        let Meta::NameValue(meta) = &attribute.meta else {
            return None;
        };
        match (&meta.value, meta.path.is_ident("path")) {
            (Expr::Lit(value), true) => match &value.lit {
                Lit::Str(path) => Some(folder.join(path.value())),
                _ => None,
            },
            _ => None,
        }
    });
    stated.unwrap_or_else(|| {
        let below = match is_folder {
            true => folder.to_owned(),
            false => declared_in.with_extension(""),
        };
        below.join(format!("{}.rs", module.ident))
    })
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)
        .expect("a folder of sources")
        .flatten()
    {
        let path = entry.path();
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

/// The two folders at which the paths part; the files of a folder, if it contains the other one.
fn parting(from: &Module, to: &Module) -> Option<(String, String)> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let part = |path: &Module| match path.get(..=common) {
        Some(part) => part.join("/"),
        None => [path.as_slice(), &["*".to_owned()]].concat().join("/"),
    };
    (from != to).then(|| (part(from), part(to)))
}

/// The module in this crate that has what an import of `module` names.
fn definition(
    module: &Module,
    import: &[String],
    modules: &BTreeMap<Module, &PathBuf>,
    all_imports: &BTreeMap<&Module, Imports>,
) -> Option<Module> {
    let (mut place, mut path) = (module.clone(), import.to_vec());
    // A name may be handed on several times.
    for _ in 0..8 {
        let (target, rest) = resolve(&place, &path, modules)?;
        let handed_on = rest.first().and_then(|name| {
            let imports = all_imports.get(&target)?;
            imports.names.get(name).cloned()
        });
        match handed_on {
            Some(further) => (place, path) = (target, further),
            None => return (!target.is_empty() && target != *module).then_some(target),
        }
    }
    panic!("{import:?} of {module:?} is handed on in a circle");
}

/// The module in this crate that an import of `module` goes to, and what it names there.
fn resolve(
    module: &Module,
    import: &[String],
    modules: &BTreeMap<Module, &PathBuf>,
) -> Option<(Module, Vec<String>)> {
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
    let mut names = Vec::new();
    while !modules.contains_key(&target) {
        names.insert(0, target.pop()?);
    }
    Some((target, names))
}

/// The paths in a file outside of tests.
#[derive(Default)]
struct Imports {
    paths: BTreeSet<Vec<String>>,
    /// What is in scope by way of `use`, for others as well: the paths by the names.
    names: BTreeMap<String, Vec<String>>,
    /// In an item that others see, which hands on what it names.
    hands_on: bool,
    /// In a module that has no file of its own: its names are not the file's.
    is_inner: bool,
    /// Files of the modules that only tests have.
    tests: Vec<PathBuf>,
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
            UseTree::Name(name) => self.add_leaf(&name.ident, &name.ident, path),
            UseTree::Rename(name) => self.add_leaf(&name.ident, &name.rename, path),
            UseTree::Glob(_) if self.hands_on => {}
            UseTree::Glob(_) => {
                self.paths.insert(path.clone());
            }
        }
    }

    fn add_leaf(&mut self, name: &Ident, known_as: &Ident, path: &[String]) {
        let mut path = path.to_vec();
        if name != "self" {
            path.push(name.to_string());
        }
        if !self.is_inner {
            self.names.insert(known_as.to_string(), path.clone());
        }
        if !self.hands_on {
            self.paths.insert(path);
        }
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
            self.hands_on = !matches!(import.vis, Visibility::Inherited);
            self.add_tree(&import.tree, &mut Vec::new());
        }
        let is_inner = self.is_inner;
        self.is_inner |= matches!(item, Item::Mod(_));
        visit::visit_item(self, item);
        self.is_inner = is_inner;
    }

    // The path in `pub(in path)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

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
fn circles_of(arrows: &Arrows) -> Vec<BTreeSet<String>> {
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
