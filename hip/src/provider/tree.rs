//! A tree of files in a temporary folder, for tests of the search for AMD's libraries.

use std::fs;
use std::path::PathBuf;

use crate::provider::names::System;
use crate::provider::places::{Installation, Machine};

/// A machine's folders.
pub(crate) struct Tree(pub(crate) PathBuf);

impl Tree {
    /// A machine with these files below its root, all empty.
    pub(crate) fn new(name: &str, files: &[&str]) -> Self {
        let root = std::env::temp_dir().join(format!("hip-machine-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let tree = Self(root);
        fs::create_dir_all(&tree.0).unwrap();
        for file in files {
            let path = tree.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        tree
    }

    #[cfg(unix)]
    pub(crate) fn link(&self, from: &str, to: &str) {
        std::os::unix::fs::symlink(self.0.join(to), self.0.join(from)).unwrap();
    }

    /// The installations, with variables that name folders below the root.
    pub(crate) fn all(&self, system: System, variables: &[(&str, &str)]) -> Vec<Installation> {
        let variable = |name: &str| {
            let (_, path) = variables.iter().find(|(set, _)| *set == name)?;
            Some(self.0.join(path).into_os_string())
        };
        Machine { system, root: self.0.clone(), variable: &variable }.installations()
    }

    /// The installations that exist, each as a list of its folders below the root.
    pub(crate) fn installations(&self, system: System, variables: &[(&str, &str)]) -> Vec<String> {
        let exist = |found: &Installation| -> Option<String> {
            if found.folders.is_empty() {
                return Some("loader".into());
            }
            let folders: Vec<_> =
                found.folders.iter().filter(|f| f.is_dir()).map(|f| self.below(f)).collect();
            (!folders.is_empty()).then(|| folders.join(" "))
        };
        self.all(system, variables).iter().filter_map(exist).collect()
    }

    /// A path below the root, with slashes.
    pub(crate) fn below(&self, path: &std::path::Path) -> String {
        let path = path.strip_prefix(&self.0).unwrap_or(path).display().to_string();
        if cfg!(windows) { path.replace('\\', "/") } else { path }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
