//! The messages of Gitaly, with all fields that a client could set by mistake.

use prost::Message;

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Repository {
    #[prost(string, tag = "2")]
    pub(super) storage_name: String,
    #[prost(string, tag = "3")]
    pub(super) relative_path: String,
    #[prost(string, tag = "4")]
    pub(super) git_object_directory: String,
    #[prost(string, repeated, tag = "5")]
    pub(super) git_alternate_object_directories: Vec<String>,
    #[prost(string, tag = "6")]
    pub(super) gl_repository: String,
    #[prost(string, tag = "8")]
    pub(super) gl_project_path: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct InfoRefsRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) repository: Option<Repository>,
    #[prost(string, repeated, tag = "2")]
    pub(super) git_config_options: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) git_protocol: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct InfoRefsResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) data: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct GetTreeEntriesRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) repository: Option<Repository>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) revision: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) path: Vec<u8>,
    #[prost(bool, tag = "4")]
    pub(super) recursive: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct GetTreeEntriesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<TreeEntry>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TreeEntry {
    #[prost(string, tag = "1")]
    pub(super) oid: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) path: Vec<u8>,
    /// `EntryType`: BLOB = 0, TREE = 1, COMMIT = 3.
    #[prost(int32, tag = "4")]
    pub(super) kind: i32,
    #[prost(int32, tag = "5")]
    pub(super) mode: i32,
    #[prost(string, tag = "6")]
    pub(super) commit_oid: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TreeEntryRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) repository: Option<Repository>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) revision: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) path: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub(super) limit: i64,
    #[prost(int64, tag = "5")]
    pub(super) max_size: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TreeEntryResponse {
    /// `ObjectType`: COMMIT = 0, BLOB = 1, TREE = 2, TAG = 3.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(string, tag = "2")]
    pub(super) oid: String,
    #[prost(int64, tag = "3")]
    pub(super) size: i64,
    #[prost(int32, tag = "4")]
    pub(super) mode: i32,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) data: Vec<u8>,
}
