//! GitOps on the wire: what kas sends so that a cluster becomes what is in Git, and what agentk answers.
//!
//! ```text
//!   kas ── GET /v1/source ────────────► agentk    a stream: which replica of kas is the source, and what it must send again
//!   kas ── PUT /v1/projects ──────────► agentk    the projects of the agent
//!   kas ── PUT /v1/problem ───────────► agentk    why there are no files for a project
//!   kas ── POST /v1/sync ─────────────► agentk    the files of one commit; the response is a stream of events
//!   kas ── POST, PUT /v1/preview ─────► agentk    the files for a diff that a caller wants, or why there are none
//!   kas ── GET /v1/cluster ───────────► agentk    the version and the API of the cluster, for which charts are rendered
//! ```
//!
//! These requests are of the internal service `manifests`, which callers cannot reach. All streams are lines of JSON; in the
//! request of a sync the bytes of a file follow its line (see [`SyncEncoder`]).

mod diff;
mod frames;
mod project_path;
mod source;
mod status;

use serde::{Deserialize, Serialize};

pub use self::{
    diff::{
        DiffAction, DiffLine, DiffRequest, DiffSummary, FieldDiff, MAX_FILES, ManifestApplication,
        ManifestFile, ObjectDiff, PreviewRequest,
    },
    frames::{FrameError, FrameLimits, SyncDecoder, SyncEncoder, SyncFrame},
    project_path::ProjectPath,
    source::{InvalidSourceQuery, SourceQuery},
    status::{
        AwaitedObject, HeldDeletions, HeldObject, ObjectCounts, ObjectError, ObjectId, ProjectState,
        ProjectStatus, RecoveryPlan, SyncEvent, SyncEventKind, SyncRecord,
    },
};
use crate::agent_configuration::gitops::ManifestProject;

/// The path of the subscription. Its method is GET, and its query is a [`SourceQuery`].
pub const SOURCE_PATH: &str = "/v1/source";
/// The path of the list of projects. Its method is PUT, and its body is a [`ProjectList`].
pub const PROJECTS_PATH: &str = "/v1/projects";
/// The path of a sync. Its method is POST, and its body consists of [`SyncFrame`]s.
pub const SYNC_PATH: &str = "/v1/sync";

/// The path of a problem with a project. Its method is PUT, and its body is a [`SourceProblem`].
pub const PROBLEM_PATH: &str = "/v1/problem";

/// The path of the files for a diff, with the query `number=<number of the PreviewRequest>`. With POST the body consists of
/// [`SyncFrame`]s, and with PUT it is a [`SourceProblem`].
pub const PREVIEW_PATH: &str = "/v1/preview";

/// The path of the [`ClusterVersions`]. Its method is GET. An agentk that does not know it responds with 404.
pub const CLUSTER_PATH: &str = "/v1/cluster";

/// The largest body of the versions of a cluster, in bytes.
pub const MAX_CLUSTER_VERSIONS: usize = 1 << 20;

/// The largest body of a list of projects, in bytes.
pub const MAX_PROJECT_LIST: usize = 4 << 20;

/// A line of the subscription: what agentk wants from this replica of kas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceNotice {
    /// This replica sends nothing: agentk does not lead, or another replica is its source.
    Standby,
    /// This replica is the source: it sends the projects, and then each new commit.
    Active,
    /// The source looks at the repository of this project at once and sends the files again.
    Wanted(String),
    /// This replica reads the files of a project for a diff. It need not be the source.
    Preview(PreviewRequest),
}

/// The version and the API of a cluster, for which charts are rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterVersions {
    /// The version of Kubernetes, such as `v1.37.0`. It is empty if agentk may not read it.
    pub kubernetes: String,
    /// All versions of API groups and their kinds: `group/version` and `group/version/Kind`.
    pub api: Vec<String>,
    /// API groups whose server does not respond. Some of their versions may be missing above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<String>,
    /// agentk runs the hooks of charts. An older agentk would apply them like all other objects.
    #[serde(default)]
    pub hooks: bool,
}

/// The projects of an agent. A project that was synced before and is not among them is orphaned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectList {
    /// The projects, with their ids.
    pub projects: Vec<ManifestProject>,
}

/// The beginning of a sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncHead {
    /// The id of the project.
    pub project: String,
    /// The settings of the project.
    pub settings: ManifestProject,
    /// The id of the project in GitLab. Objects in the inventory that GitLab's agent has kept for it are taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gitlab_project: Option<u64>,
    /// The version that was asked for, such as `branch main`.
    pub reference: String,
    /// The commit of the files.
    pub commit: CommitInfo,
}

/// A commit, as people recognize it. All but the id is not trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitInfo {
    /// The id: 40 or 64 hexadecimal digits, or the digest of an artifact.
    pub id: String,
    /// The first line of the message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// The name of the author.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
}

/// A problem that kas has with a project before there are files: the repository cannot be read, a limit is exceeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceProblem {
    /// The id of the project.
    pub project: String,
    /// The reason in one sentence.
    pub message: String,
    /// Another attempt at the same version gives the same: its manifests or the settings of the project are wrong.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}
