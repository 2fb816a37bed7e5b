//! The messages of the three RPCs of Gitaly that kas uses, with the fields that kas reads or sets.

use prost::Message;
use serde::Deserialize;

/// `gitaly.Repository`: where Gitaly finds a repository. GitLab sends it, and kas passes it on unchanged.
///
/// `gitlab.agent.entity.GitalyRepository` has the same fields, and GitLab's HTTP API the same names.
#[derive(Clone, PartialEq, Eq, Hash, Message, Deserialize)]
#[serde(default)]
pub struct RepositoryLocation {
    /// The storage of Gitaly.
    #[prost(string, tag = "2")]
    pub storage_name: String,
    /// The path in the storage.
    #[prost(string, tag = "3")]
    pub relative_path: String,
    /// The directory of objects, if it is not that of the repository.
    #[prost(string, tag = "4")]
    pub git_object_directory: String,
    /// More directories of objects.
    #[prost(string, repeated, tag = "5")]
    pub git_alternate_object_directories: Vec<String>,
    /// The name of the repository in GitLab, such as `project-7`.
    #[prost(string, tag = "6")]
    pub gl_repository: String,
    /// The full path of the project.
    #[prost(string, tag = "8")]
    pub gl_project_path: String,
}

/// `gitaly.InfoRefsRequest`. Gitaly caches its responses while the fields after the repository have their defaults.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct InfoRefsRequest {
    /// The repository.
    #[prost(message, optional, tag = "1")]
    pub repository: Option<RepositoryLocation>,
}

/// `gitaly.InfoRefsResponse`: a part of the advertisement of references.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct InfoRefsResponse {
    /// The bytes, in pkt-lines that may be split anywhere.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: bytes::Bytes,
}

/// `gitaly.GetTreeEntriesRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetTreeEntriesRequest {
    /// The repository.
    #[prost(message, optional, tag = "1")]
    pub repository: Option<RepositoryLocation>,
    /// The commit.
    #[prost(bytes = "vec", tag = "2")]
    pub revision: Vec<u8>,
    /// The directory, relative to the root of the repository.
    #[prost(bytes = "vec", tag = "3")]
    pub path: Vec<u8>,
    /// True lists the directories below as well.
    #[prost(bool, tag = "4")]
    pub recursive: bool,
    /// True makes Gitaly leave out `flat_path`, which is expensive.
    #[prost(bool, tag = "7")]
    pub skip_flat_paths: bool,
}

/// `gitaly.GetTreeEntriesResponse`: some entries of the directory.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetTreeEntriesResponse {
    /// The entries.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<TreeEntry>,
}

/// `gitaly.TreeEntry`: an entry of a directory.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TreeEntry {
    /// The path, relative to the root of the repository.
    #[prost(bytes = "vec", tag = "3")]
    pub path: Vec<u8>,
    /// The kind of the entry: 0 is a file or a symbolic link, 1 a directory, 3 a submodule.
    #[prost(int32, tag = "4")]
    pub kind: i32,
    /// The mode of the entry in Git.
    #[prost(int32, tag = "5")]
    pub mode: i32,
}

/// `gitaly.TreeEntryRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TreeEntryRequest {
    /// The repository.
    #[prost(message, optional, tag = "1")]
    pub repository: Option<RepositoryLocation>,
    /// The commit.
    #[prost(bytes = "vec", tag = "2")]
    pub revision: Vec<u8>,
    /// The path of the file.
    #[prost(bytes = "vec", tag = "3")]
    pub path: Vec<u8>,
    /// The largest file in bytes; above it, the error is `FailedPrecondition`.
    #[prost(int64, tag = "5")]
    pub max_size: i64,
}

/// `gitaly.TreeEntryResponse`: a part of a file. Only the first one has `kind`, `id` and `mode`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TreeEntryResponse {
    /// The kind of the object: 0 is a commit, that is a submodule, 1 a blob, 2 a tree.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The id of the object. Some versions of Gitaly send a response without it if nothing has the path.
    #[prost(string, tag = "2")]
    pub id: String,
    /// The mode of the entry in Git.
    #[prost(int32, tag = "4")]
    pub mode: i32,
    /// The next bytes of the file.
    #[prost(bytes = "bytes", tag = "5")]
    pub data: bytes::Bytes,
}
