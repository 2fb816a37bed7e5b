//! The messages of the RPCs that GitLab calls. All fields of a response are optional for GitLab.

use std::{collections::HashMap, fmt};

use gitlab_tunnel::messages::AgentMeta;
use kas_core::api::grpc::Timestamp;
use prost::{Message, Oneof};

use crate::gitaly::messages::RepositoryLocation;

/// A request or a response without fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// `gitlab.agent.server_info.rpc.GetServerInfoResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetServerInfoResponse {
    /// The replica that responds.
    #[prost(message, optional, tag = "1")]
    pub current_server_info: Option<ServerInfo>,
}

/// The version of kas.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ServerInfo {
    /// The version, such as `0.1.0`.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The Git reference of the version, such as `v0.1.0`.
    #[prost(string, tag = "2")]
    pub git_ref: String,
}

/// `gitlab.agent.agent_tracker.rpc.GetConnectedAgentsRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetConnectedAgentsRequest {
    /// The agents.
    #[prost(oneof = "AgentSelector", tags = "1, 2")]
    pub request: Option<AgentSelector>,
}

/// The agents of a [`GetConnectedAgentsRequest`].
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum AgentSelector {
    /// All agents whose configuration is in this project.
    #[prost(int64, tag = "1")]
    ProjectId(i64),
    /// One agent.
    #[prost(int64, tag = "2")]
    AgentId(i64),
}

/// `gitlab.agent.agent_tracker.rpc.GetConnectedAgentsByAgentIDsRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetConnectedAgentsByAgentIdsRequest {
    /// The agents.
    #[prost(int64, repeated, tag = "1")]
    pub agent_ids: Vec<i64>,
}

/// `gitlab.agent.agent_tracker.rpc.GetConnectedAgentsResponse`, which the other methods of the service have, too.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetConnectedAgentsResponse {
    /// One entry for each agentk process.
    #[prost(message, repeated, tag = "1")]
    pub agents: Vec<ConnectedAgentInfo>,
}

/// `gitlab.agent.agent_tracker.ConnectedAgentInfo`: an agentk process.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConnectedAgentInfo {
    /// The process, as it reports itself.
    #[prost(message, optional, tag = "1")]
    pub agent_meta: Option<AgentMeta>,
    /// The time at which its oldest tunnel was opened.
    #[prost(message, optional, tag = "2")]
    pub connected_at: Option<Timestamp>,
    /// A number of the process.
    #[prost(int64, tag = "3")]
    pub connection_id: i64,
    /// The agent.
    #[prost(int64, tag = "4")]
    pub agent_id: i64,
    /// The project with its configuration, or 0.
    #[prost(int64, tag = "5")]
    pub project_id: i64,
}

/// `gitlab.agent.configuration_project.rpc.ListAgentConfigFilesRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListAgentConfigFilesRequest {
    /// The repository.
    #[prost(message, optional, tag = "1")]
    pub repository: Option<RepositoryLocation>,
    /// The server of the repository.
    #[prost(message, optional, tag = "2")]
    pub gitaly_info: Option<GitalyInfo>,
    /// The branch. Newer versions of GitLab do not send it.
    #[prost(string, tag = "3")]
    pub default_branch: String,
}

/// `gitlab.agent.entity.GitalyInfo`.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct GitalyInfo {
    /// The address.
    #[prost(string, tag = "1")]
    pub address: String,
    /// The secret.
    #[prost(string, tag = "2")]
    pub token: String,
    /// Metadata of calls.
    #[prost(map = "string, string", tag = "3")]
    pub features: HashMap<String, String>,
}

impl fmt::Debug for GitalyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitalyInfo").field("address", &self.address).finish_non_exhaustive()
    }
}

/// `gitlab.agent.configuration_project.rpc.ListAgentConfigFilesResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListAgentConfigFilesResponse {
    /// The files, in order of the agents' names.
    #[prost(message, repeated, tag = "1")]
    pub config_files: Vec<AgentConfigFile>,
}

/// `gitlab.agent.configuration_project.rpc.AgentConfigFile`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AgentConfigFile {
    /// The path in the repository.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The agent.
    #[prost(string, tag = "2")]
    pub agent_name: String,
}

#[cfg(test)]
mod tests {
    use gitlab_tunnel::messages::KubernetesVersion;

    use super::*;

    /// Returns the field numbers of a message, in order.
    fn numbers(mut bytes: &[u8]) -> Vec<u32> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let key = prost::encoding::decode_varint(&mut bytes).unwrap();
            found.push((key >> 3) as u32);
            let value = prost::encoding::decode_varint(&mut bytes).unwrap();
            // The wire type of a length-delimited field.
            if key & 7 == 2 {
                bytes = &bytes[value as usize..];
            }
        }
        found
    }

    /// The numbers of GitLab's definitions.
    #[test]
    fn fields_have_the_numbers_of_gitlab() {
        let version = KubernetesVersion::from_git_version("v1.34".into());
        assert_eq!(numbers(&version.encode_to_vec()), [1, 2, 3]);
        let meta = AgentMeta {
            version: "v".into(),
            commit_id: String::new(),
            pod_namespace: "n".into(),
            pod_name: "p".into(),
            kubernetes_version: Some(version),
        };
        assert_eq!(numbers(&meta.encode_to_vec()), [1, 3, 4, 5]);
        let agent = ConnectedAgentInfo {
            agent_meta: Some(meta),
            connected_at: Some(Timestamp { seconds: 1 }),
            connection_id: 2,
            agent_id: 3,
            project_id: 4,
        };
        assert_eq!(numbers(&agent.encode_to_vec()), [1, 2, 3, 4, 5]);
        let file = AgentConfigFile { name: "f".into(), agent_name: "a".into() };
        assert_eq!(numbers(&file.encode_to_vec()), [1, 2]);
        let location = RepositoryLocation {
            storage_name: "s".into(),
            relative_path: "r".into(),
            git_object_directory: "o".into(),
            git_alternate_object_directories: vec!["a".into()],
            gl_repository: "g".into(),
            gl_project_path: "p".into(),
        };
        assert_eq!(numbers(&location.encode_to_vec()), [2, 3, 4, 5, 6, 8]);
        let info = GitalyInfo {
            address: "a".into(),
            token: "secret".into(),
            features: [("k".to_owned(), "v".to_owned())].into(),
        };
        assert_eq!(numbers(&info.encode_to_vec()), [1, 2, 3]);
        assert!(!format!("{info:?}").contains("secret"));
        let list = ListAgentConfigFilesRequest {
            repository: Some(location),
            gitaly_info: Some(info),
            default_branch: "main".into(),
        };
        assert_eq!(numbers(&list.encode_to_vec()), [1, 2, 3]);
        for (request, number) in [(AgentSelector::ProjectId(7), 1), (AgentSelector::AgentId(7), 2)] {
            let request = GetConnectedAgentsRequest { request: Some(request) };
            assert_eq!(numbers(&request.encode_to_vec()), [number]);
        }
    }
}
