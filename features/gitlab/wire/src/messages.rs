//! The messages, derived by hand from their field numbers: there are few, and no compiler of `.proto` files is needed.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// The values of a header or of a parameter, by its name.
pub type ValueMap = HashMap<String, Values>;

/// `prototool.Values`: the values of an entry of a map, in their order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Values {
    /// The values.
    #[prost(string, repeated, tag = "1")]
    pub value: Vec<String>,
}

/// A message without fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// `reverse_tunnel.rpc.ConnectRequest`: agentk → kas.
#[derive(Clone, PartialEq, Message)]
pub struct ConnectRequest {
    /// The step.
    #[prost(oneof = "AgentStep", tags = "1, 2, 3, 4, 5")]
    pub step: Option<AgentStep>,
}

/// A step of agentk in one `Connect` stream.
#[derive(Clone, PartialEq, Oneof)]
pub enum AgentStep {
    /// The first message: the services of agentk.
    #[prost(message, tag = "1")]
    Descriptor(Descriptor),
    /// The response to the request has begun.
    #[prost(message, tag = "2")]
    Header(Metadata),
    /// A message of the response.
    #[prost(message, tag = "3")]
    Message(Payload),
    /// The response has ended.
    #[prost(message, tag = "4")]
    Trailer(Metadata),
    /// The request failed.
    #[prost(message, tag = "5")]
    Error(ErrorStatus),
}

/// `reverse_tunnel.rpc.ConnectResponse`: kas → agentk.
#[derive(Clone, PartialEq, Message)]
pub struct ConnectResponse {
    /// The step.
    #[prost(oneof = "KasStep", tags = "1, 2, 3")]
    pub step: Option<KasStep>,
}

/// A step of kas in one `Connect` stream.
#[derive(Clone, PartialEq, Oneof)]
pub enum KasStep {
    /// The first message: the request.
    #[prost(message, tag = "1")]
    RequestInfo(RequestInfo),
    /// A message of the request.
    #[prost(message, tag = "2")]
    Message(Payload),
    /// The request has ended.
    #[prost(message, tag = "3")]
    CloseSend(Empty),
}

/// `reverse_tunnel.rpc.Descriptor`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Descriptor {
    /// The services.
    #[prost(message, optional, tag = "1")]
    pub agent_descriptor: Option<AgentDescriptor>,
}

/// `reverse_tunnel.info.AgentDescriptor`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AgentDescriptor {
    /// The services.
    #[prost(message, repeated, tag = "1")]
    pub services: Vec<Service>,
}

/// `reverse_tunnel.info.Service`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Service {
    /// The full name, without a slash.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The methods.
    #[prost(message, repeated, tag = "2")]
    pub methods: Vec<Method>,
}

/// `reverse_tunnel.info.Method`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Method {
    /// The short name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// `reverse_tunnel.rpc.Header` and `reverse_tunnel.rpc.Trailer`, which have the same field.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Metadata {
    /// The metadata of gRPC. The names are in lower case.
    #[prost(map = "string, message", tag = "1")]
    pub meta: ValueMap,
}

/// `reverse_tunnel.rpc.Message`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Payload {
    /// A message, without the prefix of gRPC.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
}

/// `reverse_tunnel.rpc.Error`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ErrorStatus {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    /// The code of gRPC.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The message for people.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Further messages.
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Any {
    /// The type of the value.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// A message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `reverse_tunnel.rpc.RequestInfo`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestInfo {
    /// The path of the method, with its slash.
    #[prost(string, tag = "1")]
    pub method_name: String,
    /// The metadata of the request.
    #[prost(map = "string, message", tag = "2")]
    pub meta: ValueMap,
}

/// `grpctool.HttpRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct HttpRequest {
    /// The part.
    #[prost(oneof = "RequestPart", tags = "1, 2, 3, 4")]
    pub part: Option<RequestPart>,
}

/// A part of an HTTP request.
#[derive(Clone, PartialEq, Oneof)]
pub enum RequestPart {
    /// The head.
    #[prost(message, tag = "1")]
    Header(RequestHeader),
    /// Bytes of the body.
    #[prost(message, tag = "2")]
    Data(Chunk),
    /// The end of the body.
    #[prost(message, tag = "3")]
    Trailer(Empty),
    /// Bytes of an upgraded connection.
    #[prost(message, tag = "4")]
    UpgradeData(Chunk),
}

/// `grpctool.HttpRequest.Header`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestHeader {
    /// The head.
    #[prost(message, optional, tag = "1")]
    pub request: Option<RequestHead>,
    /// The identity to impersonate, or the name of a module.
    #[prost(message, optional, tag = "2")]
    pub extra: Option<Any>,
    /// -1 for a body without a length, 0 without a body.
    #[prost(int64, optional, tag = "3")]
    pub content_length: Option<i64>,
}

/// `prototool.HttpRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestHead {
    /// The method.
    #[prost(string, tag = "1")]
    pub method: String,
    /// The headers, with the spelling that Go calls canonical.
    #[prost(map = "string, message", tag = "2")]
    pub header: ValueMap,
    /// The path, decoded.
    #[prost(string, tag = "3")]
    pub url_path: String,
    /// The parameters, decoded.
    #[prost(map = "string, message", tag = "4")]
    pub query: ValueMap,
}

/// `Data` and `UpgradeData` of requests and responses.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Chunk {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
}

/// `grpctool.HttpResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct HttpResponse {
    /// The part.
    #[prost(oneof = "ResponsePart", tags = "1, 2, 3, 4")]
    pub part: Option<ResponsePart>,
}

/// A part of an HTTP response.
#[derive(Clone, PartialEq, Oneof)]
pub enum ResponsePart {
    /// The head.
    #[prost(message, tag = "1")]
    Header(ResponseHeader),
    /// Bytes of the body.
    #[prost(message, tag = "2")]
    Data(Chunk),
    /// The end of the body.
    #[prost(message, tag = "3")]
    Trailer(Empty),
    /// Bytes of an upgraded connection.
    #[prost(message, tag = "4")]
    UpgradeData(Chunk),
}

/// `grpctool.HttpResponse.Header`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseHeader {
    /// The head.
    #[prost(message, optional, tag = "1")]
    pub response: Option<ResponseHead>,
}

/// `prototool.HttpResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseHead {
    /// The status, as a number.
    #[prost(int32, tag = "1")]
    pub status_code: i32,
    /// The status with its text, such as `200 OK`.
    #[prost(string, tag = "2")]
    pub status: String,
    /// The headers, with the spelling that Go calls canonical.
    #[prost(map = "string, message", tag = "3")]
    pub header: ValueMap,
}

/// `kubernetes_api.rpc.HeaderExtra`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KubernetesExtra {
    /// The identity to impersonate.
    #[prost(message, optional, tag = "1")]
    pub imp_config: Option<ImpersonationConfig>,
}

/// `kubernetes_api.rpc.ImpersonationConfig`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ImpersonationConfig {
    /// The name of the user.
    #[prost(string, tag = "1")]
    pub username: String,
    /// The groups of the user.
    #[prost(string, repeated, tag = "2")]
    pub groups: Vec<String>,
    /// The unique id of the user.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// Further attributes.
    #[prost(message, repeated, tag = "4")]
    pub extra: Vec<ExtraKeyValues>,
}

/// `kubernetes_api.rpc.ExtraKeyVal`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ExtraKeyValues {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The values.
    #[prost(string, repeated, tag = "2")]
    pub val: Vec<String>,
}

/// `gitlab_access.rpc.HeaderExtra`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GitlabAccessExtra {
    /// The module of agentk that sends the request.
    #[prost(string, tag = "1")]
    pub module_name: String,
}

/// `agent_configuration.rpc.ConfigurationRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfigurationRequest {
    /// The last commit that agentk has processed.
    #[prost(string, tag = "1")]
    pub commit_id: String,
    /// The process that asks.
    #[prost(message, optional, tag = "2")]
    pub agent_meta: Option<AgentMeta>,
    /// agentk registers itself with another method.
    #[prost(bool, tag = "3")]
    pub skip_register: bool,
}

/// `entity.AgentMeta`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AgentMeta {
    /// The version of agentk, with its `v`.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The commit that agentk was built from.
    #[prost(string, tag = "2")]
    pub commit_id: String,
    /// The namespace of the pod.
    #[prost(string, tag = "3")]
    pub pod_namespace: String,
    /// The name of the pod.
    #[prost(string, tag = "4")]
    pub pod_name: String,
    /// The version of the cluster, once agentk has received it.
    #[prost(message, optional, tag = "5")]
    pub kubernetes_version: Option<KubernetesVersion>,
}

/// `entity.KubernetesVersion`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KubernetesVersion {
    /// The major version.
    #[prost(string, tag = "1")]
    pub major: String,
    /// The minor version.
    #[prost(string, tag = "2")]
    pub minor: String,
    /// The whole version, such as `v1.32.4`.
    #[prost(string, tag = "3")]
    pub git_version: String,
    /// The platform, such as `linux/amd64`.
    #[prost(string, tag = "4")]
    pub platform: String,
}

impl KubernetesVersion {
    /// Returns the version of a cluster with this whole version, and no platform. A number that the text lacks is empty.
    pub fn from_git_version(git_version: String) -> Self {
        let mut numbers = git_version.trim_start_matches('v').split('.').map(str::to_owned);
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        Self { major, minor, git_version, platform: String::new() }
    }
}

/// `agent_configuration.rpc.ConfigurationResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigurationResponse {
    /// The configuration.
    #[prost(message, optional, tag = "1")]
    pub configuration: Option<AgentConfiguration>,
    /// The commit of the configuration.
    #[prost(string, tag = "2")]
    pub commit_id: String,
}

/// `agentcfg.AgentConfiguration`, without the sections of modules that only GitLab's agentk has.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AgentConfiguration {
    /// The settings of logs.
    #[prost(message, optional, tag = "2")]
    pub observability: Option<ObservabilityConfig>,
    /// The id of the agent.
    #[prost(int64, tag = "4")]
    pub agent_id: i64,
    /// The id of the project with the configuration.
    #[prost(int64, tag = "5")]
    pub project_id: i64,
    /// The CI jobs that may use the agent. agentk does not read them.
    #[prost(message, optional, tag = "6")]
    pub ci_access: Option<Empty>,
    /// The path of the project with the configuration.
    #[prost(string, tag = "8")]
    pub project_path: String,
    /// The settings of Flux.
    #[prost(message, optional, tag = "10")]
    pub flux: Option<FluxConfig>,
    /// The address of GitLab.
    #[prost(string, tag = "11")]
    pub gitlab_external_url: String,
}

/// `agentcfg.ObservabilityCF`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ObservabilityConfig {
    /// The settings of logs.
    #[prost(message, optional, tag = "1")]
    pub logging: Option<LoggingConfig>,
}

/// `agentcfg.LoggingCF`. The levels: info 0, debug 1, warn 2, error 3.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LoggingConfig {
    /// The level of the log.
    #[prost(int32, tag = "1")]
    pub level: i32,
    /// The level of the lines of gRPC.
    #[prost(int32, optional, tag = "2")]
    pub grpc_level: Option<i32>,
}

/// `agentcfg.FluxCF`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FluxConfig {
    /// The address of Flux's webhook receiver.
    #[prost(string, tag = "1")]
    pub webhook_receiver_url: String,
}

/// `agent_registrar.rpc.RegisterRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterRequest {
    /// The process that registers itself.
    #[prost(message, optional, tag = "1")]
    pub agent_meta: Option<AgentMeta>,
    /// A random id of the process.
    #[prost(int64, tag = "2")]
    pub pod_id: i64,
}

/// `flux.rpc.ReconcileProjectsRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReconcileProjectsRequest {
    /// The projects whose pushes agentk waits for.
    #[prost(message, repeated, tag = "1")]
    pub project: Vec<FluxProject>,
}

/// `flux.rpc.Project`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FluxProject {
    /// The path of the project.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// `flux.rpc.ReconcileProjectsResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ReconcileProjectsResponse {
    /// The project that received a push.
    #[prost(message, optional, tag = "1")]
    pub project: Option<FluxProject>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_the_cluster_is_split() {
        for (version, major, minor) in [
            ("v1.34.1", "1", "34"),
            ("v1.30.4-gke.5", "1", "30"),
            ("v1.33.1-eks-1", "1", "33"),
            ("1.29+", "1", "29+"),
            ("unknown", "unknown", ""),
            ("", "", ""),
        ] {
            let split = KubernetesVersion::from_git_version(version.into());
            assert_eq!((&*split.major, &*split.minor, &*split.git_version), (major, minor, version));
        }
    }
}
