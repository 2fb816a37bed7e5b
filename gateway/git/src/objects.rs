//! Finds files in the trees of a commit. The objects are not trusted.

use std::path::PathBuf;

use gix_hash::ObjectId;
use gix_object::{CommitRefIter, FindHeader as _, Kind, TreeRefIter, tree::EntryKind};
use proto::AgentName;

use crate::{CONFIGURATION_FILE, CommitId, MAX_LISTED_AGENTS, RepositoryError};

/// The largest commit or tree, in bytes. A tree has about 40 bytes for each entry.
const MAX_OBJECT: u64 = 16 << 20;
/// The largest allocation for an object and for each of its deltas, in bytes.
pub(super) const MAX_ALLOCATION: usize = 64 << 20;

/// The objects of a repository.
pub(super) struct Objects(gix_odb::Handle);

/// An entry of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TreeEntry {
    kind: EntryKind,
    id: ObjectId,
}

impl Objects {
    /// Opens a directory with objects.
    pub(super) fn open(directory: PathBuf) -> Result<Self, RepositoryError> {
        let options =
            gix_odb::store::init::Options { alloc_limit_bytes: Some(MAX_ALLOCATION), ..Default::default() };
        let shown = directory.display().to_string();
        let handle = gix_odb::at_opts(directory, gix_hash::Kind::Sha1, [], options);
        handle.map(Self).map_err(|error| invalid(format!("{shown}: {error}")))
    }

    /// Returns the id of a regular file at a path of a commit, or `None` if there is no entry.
    pub(super) fn file(&self, commit: &CommitId, path: &str) -> Result<Option<ObjectId>, RepositoryError> {
        match self.entry(commit, path)? {
            None => Ok(None),
            Some(entry) if entry.is_file() => Ok(Some(entry.id)),
            Some(entry) => Err(not_a_file(path, entry.kind)),
        }
    }

    /// Returns the content of a file with at most `max_bytes` bytes, or `None` if the objects do not contain it.
    pub(super) fn blob(
        &self,
        id: &ObjectId,
        path: &str,
        max_bytes: usize,
    ) -> Result<Option<Vec<u8>>, RepositoryError> {
        let max = u64::try_from(max_bytes).unwrap_or(u64::MAX);
        match self.header(id)? {
            None => Ok(None),
            Some(header) if header.size > max => {
                Err(RepositoryError::TooLarge { path: path.to_owned(), max_bytes })
            }
            Some(_) => self.read(id, Kind::Blob, max).map(Some),
        }
    }

    /// Returns the names of agents with a configuration file in `directory`.
    pub(super) fn agents(
        &self,
        commit: &CommitId,
        directory: &str,
    ) -> Result<Vec<AgentName>, RepositoryError> {
        let Some(TreeEntry { kind: EntryKind::Tree, id }) = self.entry(commit, directory)? else {
            return Ok(Vec::new());
        };
        let tree = self.read(&id, Kind::Tree, MAX_OBJECT)?;
        let mut agents: Vec<(AgentName, ObjectId)> = Vec::new();
        for entry in TreeRefIter::from_bytes(&tree, gix_hash::Kind::Sha1) {
            let entry = entry.map_err(|error| invalid(format!("the tree {id} is invalid: {error}")))?;
            let name = std::str::from_utf8(entry.filename).ok().and_then(|name| name.parse().ok());
            agents.extend(name.filter(|_| entry.mode.is_tree()).map(|name| (name, entry.oid.to_owned())));
        }
        agents.sort();
        let has_file =
            |id: &ObjectId| matches!(self.child(id, CONFIGURATION_FILE), Ok(Some(entry)) if entry.is_file());
        let agents = agents.into_iter().filter(|(_, id)| has_file(id));
        Ok(agents.map(|(name, _)| name).take(MAX_LISTED_AGENTS).collect())
    }

    /// Returns the entry at a path of a commit, or `None` if there is none.
    fn entry(&self, commit: &CommitId, path: &str) -> Result<Option<TreeEntry>, RepositoryError> {
        let mut entry = TreeEntry { kind: EntryKind::Tree, id: self.root(commit)? };
        let mut outer = String::new();
        for name in path.split('/') {
            match entry.kind {
                EntryKind::Tree => {}
                EntryKind::Blob | EntryKind::BlobExecutable => return Ok(None),
                EntryKind::Link | EntryKind::Commit => return Err(not_a_file(&outer, entry.kind)),
            }
            let Some(child) = self.child(&entry.id, name)? else { return Ok(None) };
            entry = child;
            if !outer.is_empty() {
                outer.push('/');
            }
            outer.push_str(name);
        }
        Ok(Some(entry))
    }

    /// Returns the entry of a tree with this name.
    fn child(&self, tree: &ObjectId, name: &str) -> Result<Option<TreeEntry>, RepositoryError> {
        let content = self.read(tree, Kind::Tree, MAX_OBJECT)?;
        for entry in TreeRefIter::from_bytes(&content, gix_hash::Kind::Sha1) {
            let entry = entry.map_err(|error| invalid(format!("the tree {tree} is invalid: {error}")))?;
            if entry.filename == name.as_bytes() {
                return Ok(Some(TreeEntry { kind: entry.mode.kind(), id: entry.oid.to_owned() }));
            }
        }
        Ok(None)
    }

    /// Returns the root tree of a commit.
    fn root(&self, commit: &CommitId) -> Result<ObjectId, RepositoryError> {
        let id = object_id(commit)?;
        let commit = self.read(&id, Kind::Commit, MAX_OBJECT)?;
        let tree = CommitRefIter::from_bytes(&commit, gix_hash::Kind::Sha1).tree_id();
        tree.map_err(|error| invalid(format!("the commit {id} is invalid: {error}")))
    }

    fn header(&self, id: &ObjectId) -> Result<Option<gix_object::Header>, RepositoryError> {
        self.0.try_header(id).map_err(|error| invalid(format!("the object {id} is invalid: {error}")))
    }

    fn read(&self, id: &ObjectId, kind: Kind, max: u64) -> Result<Vec<u8>, RepositoryError> {
        let missing = || invalid(format!("the object {id} is missing"));
        let header = self.header(id)?.ok_or_else(missing)?;
        if header.size > max || header.kind != kind {
            return Err(invalid(format!("the object {id} is too large, or not a {kind}")));
        }
        let mut content = Vec::new();
        let found = gix_object::Find::try_find(&self.0, id, &mut content);
        found
            .map_err(|error| invalid(format!("the object {id} is invalid: {error}")))?
            .ok_or_else(missing)?;
        Ok(content)
    }
}

impl TreeEntry {
    fn is_file(self) -> bool {
        matches!(self.kind, EntryKind::Blob | EntryKind::BlobExecutable)
    }
}

/// Returns the id of a commit as one of an object.
pub(super) fn object_id(commit: &CommitId) -> Result<ObjectId, RepositoryError> {
    ObjectId::from_hex(commit.as_str().as_bytes())
        .map_err(|_| invalid("repositories with SHA-256 are not supported".to_owned()))
}

fn not_a_file(path: &str, kind: EntryKind) -> RepositoryError {
    let kind = match kind {
        EntryKind::Tree => "a directory",
        EntryKind::Link => "a symbolic link",
        EntryKind::Commit => "a submodule",
        EntryKind::Blob | EntryKind::BlobExecutable => "a file",
    };
    RepositoryError::NotAFile { path: path.to_owned(), kind }
}

/// Returns the error of a repository that does not respond, or whose content Git would not create.
pub(super) fn invalid(what: String) -> RepositoryError {
    RepositoryError::Unavailable(what)
}
