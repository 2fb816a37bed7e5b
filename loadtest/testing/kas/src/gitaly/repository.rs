//! A bare repository that the `git` program makes and reads.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::messages::{TreeEntry, TreeEntryResponse};

/// A bare repository with a work tree beside it, in which tests make commits.
pub struct TestRepository {
    bare: PathBuf,
    work: PathBuf,
}

/// A file of a commit.
pub enum TestFile<'a> {
    /// A regular file with this content.
    Content(&'a [u8]),
    /// A symbolic link to this path.
    Link(&'a str),
}

impl TestRepository {
    pub(super) fn new(directory: &Path) -> Self {
        let (bare, work) = (directory.join("repository.git"), directory.join("work"));
        fs::create_dir(&work).unwrap();
        run(directory, &["init", "--quiet", "--bare", "--initial-branch=main", bare.to_str().unwrap()]);
        run(&work, &["init", "--quiet", "--initial-branch=main"]);
        Self { bare, work }
    }

    /// Returns the path of the bare repository.
    pub fn path(&self) -> &Path {
        &self.bare
    }

    /// Commits these files on a branch, and returns the id of the commit.
    pub fn commit(&self, branch: &str, files: &[(&str, TestFile<'_>)]) -> String {
        for (path, file) in files {
            let path = self.work.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match file {
                TestFile::Content(content) => fs::write(&path, content).unwrap(),
                TestFile::Link(target) => symlink(target, &path).unwrap(),
            }
        }
        run(&self.work, &["add", "--all"]);
        run(&self.work, &["commit", "--quiet", "--allow-empty", "--message=change"]);
        let target = format!("HEAD:refs/heads/{branch}");
        run(&self.work, &["push", "--quiet", self.bare.to_str().unwrap(), &target]);
        String::from_utf8(run(&self.work, &["rev-parse", "HEAD"])).unwrap().trim().to_owned()
    }

    /// Runs git in the bare repository.
    pub fn git(&self, arguments: &[&str]) {
        run(&self.bare, arguments);
    }
}

/// Runs git in a directory, and returns its output, or `None` if it fails.
pub(super) fn git(directory: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut command = Command::new("git");
    command.current_dir(directory).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for (name, value) in [("NAME", "Test"), ("EMAIL", "test@example.com"), ("DATE", "2026-01-01T00:00:00Z")] {
        command.env(format!("GIT_AUTHOR_{name}"), value).env(format!("GIT_COMMITTER_{name}"), value);
    }
    let output = command.output().expect("git cannot be started");
    output.status.success().then_some(output.stdout)
}

fn run(directory: &Path, arguments: &[&str]) -> Vec<u8> {
    git(directory, arguments).unwrap_or_else(|| panic!("git {arguments:?} failed"))
}

/// Lists a directory, or returns `None` if it does not exist.
pub(super) fn list(bare: &Path, revision: &str, path: &str, recursive: bool) -> Option<Vec<TreeEntry>> {
    // Gitaly calls the root `.`, and has its entries without this name.
    let path = if path == "." { "" } else { path };
    let slash = if path.is_empty() { "" } else { "/" };
    let tree = format!("{revision}:{path}");
    let flags = ["ls-tree", "-z", "--full-tree"].into_iter().chain(recursive.then_some("-rt"));
    let output = git(bare, &flags.chain([tree.as_str()]).collect::<Vec<_>>())?;
    let entries = output.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    let entries = entries.map(|entry| {
        let entry = String::from_utf8(entry.to_vec()).expect("the names are text");
        let (head, name) = entry.split_once('\t').expect("a tab before the name");
        let [mode, kind, oid] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
        TreeEntry {
            oid: oid.into(),
            path: format!("{path}{slash}{name}").into_bytes(),
            kind: ["blob", "tree", "", "commit"].iter().position(|name| *name == kind).unwrap() as i32,
            mode: i32::from_str_radix(mode, 8).unwrap(),
            commit_oid: revision.into(),
        }
    });
    Some(entries.collect())
}

/// Returns the entry at a path, without its data, and its content.
pub(super) fn entry(bare: &Path, revision: &str, path: &str) -> Option<(TreeEntryResponse, Vec<u8>)> {
    let output = git(bare, &["ls-tree", "--full-tree", revision, path])?;
    let output = String::from_utf8(output).expect("the names are text");
    let head = output.split_once('\t')?.0;
    let [mode, kind, oid] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
    let content = match kind {
        "blob" => git(bare, &["cat-file", "blob", oid])?,
        _ => Vec::new(),
    };
    let first = TreeEntryResponse {
        kind: ["commit", "blob", "tree"].iter().position(|name| *name == kind).unwrap() as i32,
        oid: oid.into(),
        size: content.len() as i64,
        mode: i32::from_str_radix(mode, 8).unwrap(),
        data: Vec::new(),
    };
    Some((first, content))
}
