//! Finds files in the trees of a commit. The objects are not trusted.

use std::path::PathBuf;

use gix_hash::ObjectId;
use gix_object::{CommitRefIter, FindHeader as _, Kind, TagRefIter, TreeRefIter, tree::EntryKind};
use proto::AgentName;

use crate::{
    CONFIGURATION_FILE, CommitId, FileSelection, MAX_LISTED_AGENTS, RepositoryError, RepositoryFile,
    SelectedFiles,
};

/// The largest commit or tree, in bytes. A tree has about 40 bytes for each entry.
const MAX_OBJECT: u64 = 16 << 20;
/// The largest allocation for an object and for each of its deltas, in bytes.
pub(super) const MAX_ALLOCATION: usize = 64 << 20;

/// The most entries of all trees of a commit that are looked at.
const MAX_ENTRIES: usize = 500_000;
/// The longest path, in bytes: that of Linux.
const MAX_PATH: usize = 4096;
/// The most characters of a message or a name.
const MAX_SHOWN: usize = 120;
/// The most tags of tags.
const MAX_TAGS: usize = 8;

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
            let entry = entry.map_err(|error| refused(format!("the tree {id} is invalid: {error}")))?;
            let name = std::str::from_utf8(entry.filename).ok().and_then(|name| name.parse().ok());
            agents.extend(name.filter(|_| entry.mode.is_tree()).map(|name| (name, entry.oid.to_owned())));
        }
        agents.sort();
        let has_file =
            |id: &ObjectId| matches!(self.child(id, CONFIGURATION_FILE), Ok(Some(entry)) if entry.is_file());
        let agents = agents.into_iter().filter(|(_, id)| has_file(id));
        Ok(agents.map(|(name, _)| name).take(MAX_LISTED_AGENTS).collect())
    }

    /// Returns the commit of a tag, or the commit itself.
    pub(super) fn peel(&self, mut id: ObjectId) -> Result<ObjectId, RepositoryError> {
        for _ in 0..MAX_TAGS {
            match self.header(&id)? {
                Some(header) if header.kind == Kind::Tag => {}
                _ => return Ok(id),
            }
            let tag = self.read(&id, Kind::Tag, MAX_OBJECT)?;
            let target = TagRefIter::from_bytes(&tag, gix_hash::Kind::Sha1).target_id();
            id = target.map_err(|error| refused(format!("the tag {id} is invalid: {error}")))?;
        }
        Err(refused(format!("the tag {id} is a tag of a tag, and so on")))
    }

    /// Returns the paths and ids of the selected files of a commit, in the order of their paths.
    pub(super) fn list(
        &self,
        commit: &CommitId,
        selection: &FileSelection,
    ) -> Result<Vec<(String, ObjectId)>, RepositoryError> {
        let (mut listed, mut entries) = (Vec::new(), 0);
        let mut directories = vec![(String::new(), self.root(commit)?)];
        while let Some((directory, id)) = directories.pop() {
            let tree = self.read(&id, Kind::Tree, MAX_OBJECT)?;
            for entry in TreeRefIter::from_bytes(&tree, gix_hash::Kind::Sha1) {
                let entry = entry.map_err(|error| refused(format!("the tree {id} is invalid: {error}")))?;
                entries += 1;
                if entries > MAX_ENTRIES {
                    return Err(refused(format!(
                        "the repository has over {MAX_ENTRIES} files and directories"
                    )));
                }
                // No glob matches a name that is not UTF-8.
                let Ok(name) = str::from_utf8(entry.filename) else { continue };
                let path = if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
                if path.len() > MAX_PATH {
                    return Err(refused(format!("a path in the repository is longer than {MAX_PATH} bytes")));
                }
                match entry.mode.kind() {
                    EntryKind::Tree if selection.enters(&path) => {
                        directories.push((path, entry.oid.to_owned()))
                    }
                    EntryKind::Blob | EntryKind::BlobExecutable if selection.selects(&path) => {
                        listed.push((path, entry.oid.to_owned()));
                    }
                    // It may be one of a directory whose files would be missing.
                    EntryKind::Link if selection.selects(&path) || selection.enters(&path) => {
                        return Err(not_a_file(&path, EntryKind::Link));
                    }
                    // Its files are in another repository: without them, the selection would be incomplete.
                    EntryKind::Commit if selection.enters(&path) => {
                        return Err(not_a_file(&path, EntryKind::Commit));
                    }
                    _ => {}
                }
                if listed.len() > selection.limits.files {
                    return Err(selection.too_many_files());
                }
            }
        }
        listed.sort();
        Ok(listed)
    }

    /// Returns the files whose content is here, and the ids of those whose content is not.
    pub(super) fn files(
        &self,
        commit: &CommitId,
        listed: Vec<(String, ObjectId)>,
        selection: &FileSelection,
    ) -> Result<(SelectedFiles, Vec<ObjectId>), RepositoryError> {
        let (mut files, mut missing, mut bytes) = (Vec::with_capacity(listed.len()), Vec::new(), 0);
        for (path, id) in listed {
            match self.blob(&id, &path, selection.limits.file_bytes)? {
                None => missing.push(id),
                Some(content) => {
                    bytes += content.len();
                    if bytes > selection.limits.bytes {
                        return Err(selection.too_many_bytes());
                    }
                    files.push(RepositoryFile { path, content });
                }
            }
        }
        let (subject, author) = self.description(commit)?;
        Ok((SelectedFiles { subject, author, files }, missing))
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
            let entry = entry.map_err(|error| refused(format!("the tree {tree} is invalid: {error}")))?;
            if entry.filename == name.as_bytes() {
                return Ok(Some(TreeEntry { kind: entry.mode.kind(), id: entry.oid.to_owned() }));
            }
        }
        Ok(None)
    }

    /// Returns the first line of the message of a commit, and the name of its author.
    fn description(&self, commit: &CommitId) -> Result<(String, String), RepositoryError> {
        let id = object_id(commit)?;
        let commit = self.read(&id, Kind::Commit, MAX_OBJECT)?;
        let parsed = CommitRefIter::from_bytes(&commit, gix_hash::Kind::Sha1);
        let author = parsed.author().map(|author| shown(author.name)).unwrap_or_default();
        let message = parsed
            .message()
            .map(|message| shown(message.split(|byte| *byte == b'\n').next().unwrap_or_default()));
        Ok((message.unwrap_or_default(), author))
    }

    /// Returns the root tree of a commit.
    fn root(&self, commit: &CommitId) -> Result<ObjectId, RepositoryError> {
        let id = object_id(commit)?;
        let commit = self.read(&id, Kind::Commit, MAX_OBJECT)?;
        let tree = CommitRefIter::from_bytes(&commit, gix_hash::Kind::Sha1).tree_id();
        tree.map_err(|error| refused(format!("the commit {id} is invalid: {error}")))
    }

    fn header(&self, id: &ObjectId) -> Result<Option<gix_object::Header>, RepositoryError> {
        self.0.try_header(id).map_err(|error| invalid(format!("the object {id} is invalid: {error}")))
    }

    fn read(&self, id: &ObjectId, kind: Kind, max: u64) -> Result<Vec<u8>, RepositoryError> {
        let missing = || invalid(format!("the object {id} is missing"));
        let header = self.header(id)?.ok_or_else(missing)?;
        if header.size > max || header.kind != kind {
            return Err(refused(format!("the object {id} is too large, or not a {kind}")));
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
        .map_err(|_| refused("repositories with SHA-256 are not supported".to_owned()))
}

/// Returns a text of a commit for people: of a bounded length, and without control characters.
fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect()
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

/// Returns the error of a commit whose content Git would not create, or that has too much of it.
pub(super) fn refused(what: String) -> RepositoryError {
    RepositoryError::Refused(what)
}

/// Returns the error of a repository that does not respond, or whose objects cannot be read.
pub(super) fn invalid(what: String) -> RepositoryError {
    RepositoryError::Unavailable(what)
}
