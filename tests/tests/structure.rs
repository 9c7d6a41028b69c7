//! The shape of the source: no two modules import each other, no line is wider than 120 columns, and
//! packages name the Rust that they need.
//!
//! A module is a file. File `a` imports file `b` if a `use` or a path in `a` leads to an item that
//! `b` defines. Paths through a re-export lead to the file that defines the item, not to the one
//! that passes it on. These rules say what does not count:
//!
//! - `mod b;` is no import, nor is a re-export (`pub use`) of what the module's own children
//!   define.
//! - Code for tests alone, under `#[cfg(test)]` or `#[cfg(all(test, ..))]`, may import anything.
//! - Calls of methods are no imports: only paths are looked at. In macros' arguments and bodies
//!   only paths that begin with `crate` count.
//! - A parent and its children are one subject: an import of what one's own ancestor defines is
//!   none. So `mod.rs` may list in a table what its children define, and share a constant with
//!   them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// The maximum number of columns in a line.
const COLUMNS: usize = 120;

type ModulePath = Vec<String>;

/// The contents of one module: a file, or a block `mod name { .. }` of a file.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// The items that the module defines, each with its file.
    items: BTreeSet<String>,
    /// The names that a `use` brings into scope, each with the path that it leads to.
    uses: HashMap<String, Vec<String>>,
    /// The modules whose names are all imported by a `use` with `*`.
    globs: Vec<Vec<String>>,
}

/// A path that occurs in a module.
struct Mention {
    module: ModulePath,
    path: Vec<String>,
    /// Whether this is a re-export: no import if a child defines what it leads to.
    exported: bool,
}

/// The modules of one crate.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
    mentions: Vec<Mention>,
}

/// The imports among files, each with the last name of its path.
type Graph = BTreeMap<PathBuf, BTreeMap<PathBuf, String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository's root")
}

/// The files that git tracks; in a copy of the sources without git, all files.
fn tracked() -> Vec<PathBuf> {
    let out = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let Some(out) = out.ok().filter(|out| out.status.success()) else {
        let mut files = Vec::new();
        walk(&root(), &mut files);
        return files;
    };
    let names = String::from_utf8(out.stdout).expect("names in UTF-8");
    // A file that was removed and not yet committed is still listed.
    names.split_terminator('\0').map(PathBuf::from).filter(|name| root().join(name).is_file()).collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            files.push(path.strip_prefix(root()).expect("below the root").to_owned());
        } else if !path.ends_with("target") && !path.ends_with(".git") {
            walk(&path, files);
        }
    }
}

/// Whether a file is the root of a crate: a library, a program, a test, an example or a benchmark.
fn is_root(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let folder = file.parent().unwrap_or(Path::new(""));
    let among = |parent: &str| folder.file_name().is_some_and(|name| name == parent);
    matches!(name, "lib.rs" | "main.rs")
        || (among("bin") || among("tests") || among("examples") || among("benches"))
            && folder
                .parent()
                .is_some_and(|up| up.ends_with("src") || root().join(up).join("Cargo.toml").exists())
}

/// Whether code is for tests alone.
fn is_for_tests(attrs: &[syn::Attribute]) -> bool {
    let mut conditions = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    conditions.any(|attr| attr.parse_args::<syn::Meta>().is_ok_and(|condition| needs_test(&condition)))
}

/// Whether a condition holds in tests alone: it is `test`, or `all(..)` with such a condition.
fn needs_test(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(needs_test)),
        _ => false,
    }
}

impl Crate {
    /// Reads a file and the files that it declares.
    fn read(&mut self, file: &Path, module: ModulePath, is_root: bool) {
        let text =
            fs::read_to_string(root().join(file)).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        let tree = syn::parse_file(&text).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        let folder = file.parent().unwrap_or(Path::new(""));
        let stem = file.file_stem().unwrap_or_default();
        // Where this file's children lie.
        let children = if is_root || stem == "mod" { folder.to_owned() } else { folder.join(stem) };
        self.modules.entry(module.clone()).or_default().file = file.to_owned();
        let mut reader = Reader { own: self, file, children, module };
        reader.visit_file(&tree);
    }

    /// The file that defines what a path leads to, seen from a module; `None` if another crate
    /// defines it.
    fn resolve(
        &self,
        from: &ModulePath,
        path: &[String],
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let (mut at, mut rest) = match first.as_str() {
            "crate" => (Vec::new(), rest),
            "self" => (from.clone(), rest),
            "super" => (from.split_last()?.1.to_vec(), rest),
            _ => (from.clone(), path),
        };
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at.pop()?;
                rest = after;
                continue;
            }
            let last = after.is_empty();
            let child: ModulePath = at.iter().chain([name]).cloned().collect();
            let module = self.modules.get(&at)?;
            if last && module.items.contains(name) {
                return Some(Found::Item(module.file.clone(), at));
            }
            if self.modules.contains_key(&child) {
                at = child;
                rest = after;
                continue;
            }
            if module.items.contains(name) {
                // A variant or an associated item.
                return Some(Found::Item(module.file.clone(), at));
            }
            if !seen.insert((at.clone(), name.clone())) {
                return None;
            }
            let found = match module.uses.get(name) {
                Some(target) => self.resolve(&at, target, seen),
                None => module.globs.iter().find_map(|glob| {
                    let through: Vec<String> = glob.iter().chain([name]).cloned().collect();
                    // A path that does not begin with a module of this crate leads to another
                    // crate.
                    self.resolve(&at, &through, seen)
                }),
            };
            match found? {
                Found::Item(file, module) => return Some(Found::Item(file, module)),
                Found::Module(module) => {
                    at = module;
                    rest = after;
                }
            }
        }
        Some(Found::Module(at))
    }

    fn graph(&self, graph: &mut Graph) {
        for mention in &self.mentions {
            let from = &self.modules[&mention.module].file;
            let found = self.resolve(&mention.module, &mention.path, &mut BTreeSet::new());
            let (file, module) = match found {
                Some(Found::Item(file, module)) => (file, module),
                Some(Found::Module(module)) => match self.modules.get(&module) {
                    Some(found) => (found.file.clone(), module),
                    None => continue,
                },
                None => continue,
            };
            let passed_on = mention.exported && module.starts_with(&mention.module);
            let of_ancestor = mention.module.len() > module.len() && mention.module.starts_with(&module);
            if file != *from && !passed_on && !of_ancestor {
                graph
                    .entry(from.clone())
                    .or_default()
                    .entry(file)
                    .or_insert_with(|| mention.path.last().cloned().unwrap_or_default());
            }
        }
    }
}

/// Where a path leads.
enum Found {
    Item(PathBuf, ModulePath),
    Module(ModulePath),
}

/// Collects what a file defines and which paths occur in it.
struct Reader<'a> {
    own: &'a mut Crate,
    file: &'a Path,
    children: PathBuf,
    module: ModulePath,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        self.own.modules.entry(self.module.clone()).or_default()
    }

    fn mention(&mut self, path: Vec<String>, exported: bool) {
        self.own.mentions.push(Mention { module: self.module.clone(), path, exported });
    }

    fn add_use(&mut self, tree: &syn::UseTree, before: &[String], exported: bool) {
        let joined =
            |name: &syn::Ident| -> Vec<String> { before.iter().cloned().chain([name.to_string()]).collect() };
        match tree {
            syn::UseTree::Path(path) => self.add_use(&path.tree, &joined(&path.ident), exported),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_use(tree, before, exported))
            }
            syn::UseTree::Glob(_) => {
                self.here().globs.push(before.to_vec());
                self.mention(before.to_vec(), exported);
            }
            syn::UseTree::Name(name) => self.add_name(&name.ident, joined(&name.ident), before, exported),
            syn::UseTree::Rename(name) => self.add_name(&name.rename, joined(&name.ident), before, exported),
        }
    }

    fn add_name(&mut self, name: &syn::Ident, path: Vec<String>, before: &[String], exported: bool) {
        // `use a::b::{self}` brings `b`.
        let of_self = path.last().is_some_and(|last| last == "self");
        let path = if of_self { before.to_vec() } else { path };
        let name = match before.last() {
            Some(last) if of_self && name == "self" => last.clone(),
            _ => name.to_string(),
        };
        // `use x::x;` of another crate would lead to itself.
        if path.first() != Some(&name) || path.len() == 1 {
            self.here().uses.insert(name, path.clone());
        }
        self.mention(path, exported);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attrs, name) = match item {
            syn::Item::Const(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            syn::Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            syn::Item::Static(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Type(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Union(item) => (&item.attrs, Some(&item.ident)),
            syn::Item::Impl(item) => (&item.attrs, None),
            syn::Item::Mod(item) => (&item.attrs, None),
            syn::Item::Use(item) => (&item.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if is_for_tests(attrs) {
            return;
        }
        if let Some(name) = name {
            self.here().items.insert(name.to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        let mut module = self.module.clone();
        module.push(name.clone());
        if let Some((_, items)) = &item.content {
            let (outer, folder) = (std::mem::replace(&mut self.module, module), self.children.clone());
            self.children.push(&name);
            self.here().file = self.file.to_owned();
            items.iter().for_each(|item| self.visit_item(item));
            (self.module, self.children) = (outer, folder);
            return;
        }
        let given = item.attrs.iter().find(|attr| attr.path().is_ident("path")).and_then(|attr| {
            let syn::Meta::NameValue(pair) = &attr.meta else { return None };
            let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &pair.value else {
                return None;
            };
            Some(self.file.parent()?.join(path.value()))
        });
        let places = match given {
            Some(place) => vec![place],
            None => vec![self.children.join(format!("{name}.rs")), self.children.join(&name).join("mod.rs")],
        };
        // A file that a build script generates does not exist in the tree.
        if let Some(file) = places.into_iter().find(|place| root().join(place).is_file()) {
            self.own.read(&file, module, false);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let exported = !matches!(item.vis, syn::Visibility::Inherited);
        self.add_use(&item.tree, &[], exported);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        // A single name was imported by a `use`, or belongs to this module.
        if names.len() > 1 && path.leading_colon.is_none() {
            self.mention(names, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let text = called.tokens.to_string();
        for (at, _) in text.match_indices("crate ::").filter(|(at, _)| !text[..*at].ends_with(is_of_name)) {
            let words = text[at..].split("::").map(str::trim);
            let mut path = Vec::new();
            for word in words {
                let end = word.find(|c| !is_of_name(c)).unwrap_or(word.len());
                if end > 0 {
                    path.push(word[..end].to_owned());
                }
                if end < word.len() || end == 0 {
                    break;
                }
            }
            self.mention(path, false);
        }
        visit::visit_macro(self, called);
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The files that a file leads to. The file itself is among them only if there is a cycle.
fn reach<'a>(graph: &'a Graph, from: &'a Path) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for to in graph.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to.as_path()) {
                next.push(to);
            }
        }
    }
    reached
}

/// The groups of files that lead to each other.
fn cycles(graph: &Graph) -> Vec<Vec<&Path>> {
    let reached: BTreeMap<&Path, _> = graph.keys().map(|file| (file.as_path(), reach(graph, file))).collect();
    let mut groups: Vec<Vec<&Path>> = Vec::new();
    for (&file, to) in &reached {
        if to.contains(file) && !groups.iter().any(|group| group.contains(&file)) {
            let back = |other: &&Path| reached.get(other).is_some_and(|to| to.contains(file));
            groups.push(to.iter().copied().filter(back).collect());
        }
    }
    groups
}

/// The shortest path from a file back to itself within its group.
fn way_back<'a>(graph: &'a Graph, group: &[&'a Path]) -> Vec<&'a Path> {
    let from = group[0];
    let mut before: BTreeMap<&Path, &Path> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(file) = next.pop_front() {
        for to in graph[file].keys().map(PathBuf::as_path).filter(|to| group.contains(to)) {
            before.entry(to).or_insert_with(|| {
                next.push_back(to);
                file
            });
        }
    }
    let mut way = vec![from];
    let mut at = before[from];
    while at != from {
        way.push(at);
        at = before[at];
    }
    way.push(from);
    way.reverse();
    way
}

/// The first line of a file's code that contains the name.
fn line_of(file: &Path, name: &str) -> usize {
    let text = fs::read_to_string(root().join(file)).unwrap_or_default();
    let has = |line: &str| line.split(|c| !is_of_name(c)).any(|word| word == name);
    let found = text.lines().position(|line| !line.trim_start().starts_with("//") && has(line));
    found.map_or(0, |at| at + 1)
}

/// Describes a group in words: one cycle of it, with the line of each import.
fn describe(graph: &Graph, group: &[&Path]) -> String {
    let way = way_back(graph, group);
    let names: Vec<_> = way.iter().map(|file| file.display().to_string()).collect();
    let mut text = names.join(" -> ");
    for pair in way.windows(2) {
        let line = line_of(pair[0], &graph[pair[0]][pair[1]]);
        text += &format!("\n    {}:{line} imports {}", pair[0].display(), pair[1].display());
    }
    if group.len() > names.len() - 1 {
        let all: Vec<_> = group.iter().map(|file| file.display().to_string()).collect();
        text += &format!("\n    {} files lead to each other: {}", all.len(), all.join(", "));
    }
    text
}

#[test]
fn code_for_tests_alone_needs_the_condition_test() {
    for (condition, expected) in [
        ("test", true),
        ("all(test, feature = \"cpu\")", true),
        ("all(unix, all(test, windows))", true),
        ("any(feature = \"cuda\", test)", false),
        ("all(unix, any(test, windows))", false),
        ("not(test)", false),
        ("all(unix, not(test))", false),
        ("feature = \"test\"", false),
    ] {
        let item: syn::ItemUse = syn::parse_str(&format!("#[cfg({condition})] use a::b;")).expect("an item");
        assert_eq!(is_for_tests(&item.attrs), expected, "{condition}");
    }
}

#[test]
fn modules_import_downwards() {
    let mut graph = Graph::new();
    let files = tracked();
    let roots = files.iter().filter(|file| file.extension().is_some_and(|end| end == "rs") && is_root(file));
    for file in roots {
        let mut whole = Crate::default();
        whole.read(file, Vec::new(), true);
        whole.graph(&mut graph);
    }
    assert!(graph.len() > 100, "the imports of {} files alone were found", graph.len());
    let found: Vec<_> = cycles(&graph).iter().map(|group| describe(&graph, group)).collect();
    assert!(found.is_empty(), "modules that import each other:\n{}", found.join("\n"));
}

#[test]
fn no_line_is_too_wide() {
    let mut wide = Vec::new();
    for file in tracked() {
        let end = file.extension().and_then(|end| end.to_str()).unwrap_or_default();
        let looked_at =
            matches!(end, "rs" | "toml" | "sh" | "py" | "md" | "yml" | "hip" | "cu" | "h" | "c" | "cpp")
                || file.starts_with(".ci");
        if !looked_at {
            continue;
        }
        let text =
            fs::read_to_string(root().join(&file)).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        for (number, line) in text.lines().enumerate() {
            let said = line.trim_start();
            let said = ["//!", "///"].iter().find_map(|mark| said.strip_prefix(mark)).unwrap_or(said);
            // The row of a table can't be broken.
            if line.chars().count() > COLUMNS && !said.trim_start().starts_with('|') {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wider than {COLUMNS} columns:\n{}", wide.join("\n"));
}

/// The numbers of a version such as `1.92`.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().expect("a number")).collect()
}

/// Every package names the Rust that it needs, which is no older than what it builds needs. The
/// README names the two versions. Clippy's `incompatible_msrv` refuses newer items of the standard
/// library.
#[test]
fn packages_name_their_rust() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let rusts: HashMap<String, Option<String>> = list(&metadata["packages"])
        .iter()
        .map(|package| (text(&package["id"]).expect("an id"), text(&package["rust_version"])))
        .collect();
    let builds: HashMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let packages = list(&node["deps"]).iter().filter_map(|dep| text(&dep["pkg"])).collect();
            (text(&node["id"]).expect("an id"), packages)
        })
        .collect();
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    for member in list(&metadata["workspace_members"]).iter().filter_map(text) {
        let own = rusts[&member].as_ref().unwrap_or_else(|| panic!("{member}: no rust-version"));
        assert!(readme.contains(own.as_str()), "{member}: README does not name Rust {own}");
        let mut seen = BTreeSet::from([&member]);
        let mut open = vec![&member];
        while let Some(package) = open.pop() {
            if let Some(rust) = &rusts[package] {
                assert!(
                    numbers(rust) <= [numbers(own), vec![u32::MAX]].concat(),
                    "{member}: {package} needs {rust}"
                );
            }
            open.extend(builds[package].iter().filter(|package| seen.insert(package)));
        }
    }
}
