//! The messages of GitLab's agentk and kas, from their field numbers. They are not those of the product, so that a wrong number there
//! fails a test here.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::HashMap;

pub(crate) const KUBERNETES: &str = "gitlab.agent.kubernetes_api.rpc.KubernetesApi";
pub(crate) const CONNECT: &str = "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel/Connect";
pub(crate) const GET_CONFIGURATION: &str =
    "/gitlab.agent.agent_configuration.rpc.AgentConfiguration/GetConfiguration";
pub(crate) const REGISTER: &str = "/gitlab.agent.agent_registrar.rpc.AgentRegistrar/Register";
pub(crate) const RECONCILE_PROJECTS: &str = "/gitlab.agent.flux.rpc.GitLabFlux/ReconcileProjects";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Values {
    #[prost(string, repeated, tag = "1")]
    pub(crate) value: Vec<String>,
}

pub(crate) type Fields = HashMap<String, Values>;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ConnectRequest {
    #[prost(oneof = "AgentStep", tags = "1, 2, 3, 4, 5")]
    pub(crate) step: Option<AgentStep>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum AgentStep {
    #[prost(message, tag = "1")]
    Descriptor(Descriptor),
    #[prost(message, tag = "2")]
    Header(Meta),
    #[prost(message, tag = "3")]
    Message(Payload),
    #[prost(message, tag = "4")]
    Trailer(Meta),
    #[prost(message, tag = "5")]
    Error(Failure),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Descriptor {
    #[prost(message, optional, tag = "1")]
    pub(crate) agent_descriptor: Option<AgentDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AgentDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) services: Vec<Service>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Service {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) methods: Vec<Method>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Method {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Meta {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) meta: Fields,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Payload {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Failure {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ConnectResponse {
    #[prost(oneof = "KasStep", tags = "1, 2, 3")]
    pub(crate) step: Option<KasStep>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum KasStep {
    #[prost(message, tag = "1")]
    RequestInfo(RequestInfo),
    #[prost(message, tag = "2")]
    Message(Payload),
    #[prost(message, tag = "3")]
    CloseSend(Empty),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestInfo {
    #[prost(string, tag = "1")]
    pub(crate) method_name: String,
    #[prost(map = "string, message", tag = "2")]
    pub(crate) meta: Fields,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpRequest {
    #[prost(oneof = "RequestPart", tags = "1, 2, 3, 4")]
    pub(crate) part: Option<RequestPart>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum RequestPart {
    #[prost(message, tag = "1")]
    Header(RequestHeader),
    #[prost(message, tag = "2")]
    Data(Payload),
    #[prost(message, tag = "3")]
    Trailer(Empty),
    #[prost(message, tag = "4")]
    UpgradeData(Payload),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestHeader {
    #[prost(message, optional, tag = "1")]
    pub(crate) request: Option<RequestHead>,
    #[prost(message, optional, tag = "2")]
    pub(crate) extra: Option<Any>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) content_length: Option<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestHead {
    #[prost(string, tag = "1")]
    pub(crate) method: String,
    #[prost(map = "string, message", tag = "2")]
    pub(crate) header: Fields,
    #[prost(string, tag = "3")]
    pub(crate) url_path: String,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) query: Fields,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeaderExtra {
    #[prost(message, optional, tag = "1")]
    pub(crate) imp_config: Option<ImpersonationConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GitlabAccessExtra {
    #[prost(string, tag = "1")]
    pub(crate) module_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ImpersonationConfig {
    #[prost(string, tag = "1")]
    pub(crate) username: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) groups: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) uid: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) extra: Vec<ExtraKeyVal>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExtraKeyVal {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) val: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpResponse {
    #[prost(oneof = "ResponsePart", tags = "1, 2, 3, 4")]
    pub(crate) part: Option<ResponsePart>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ResponsePart {
    #[prost(message, tag = "1")]
    Header(ResponseHeader),
    #[prost(message, tag = "2")]
    Data(Payload),
    #[prost(message, tag = "3")]
    Trailer(Empty),
    #[prost(message, tag = "4")]
    UpgradeData(Payload),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseHeader {
    #[prost(message, optional, tag = "1")]
    pub(crate) response: Option<ResponseHead>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseHead {
    #[prost(int32, tag = "1")]
    pub(crate) status_code: i32,
    #[prost(string, tag = "2")]
    pub(crate) status: String,
    #[prost(map = "string, message", tag = "3")]
    pub(crate) header: Fields,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AgentMeta {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(string, tag = "2")]
    pub(crate) commit_id: String,
    #[prost(string, tag = "3")]
    pub(crate) pod_namespace: String,
    #[prost(string, tag = "4")]
    pub(crate) pod_name: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) kubernetes_version: Option<KubernetesVersion>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KubernetesVersion {
    #[prost(string, tag = "1")]
    pub(crate) major: String,
    #[prost(string, tag = "2")]
    pub(crate) minor: String,
    #[prost(string, tag = "3")]
    pub(crate) git_version: String,
    #[prost(string, tag = "4")]
    pub(crate) platform: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RegisterRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) agent_meta: Option<AgentMeta>,
    #[prost(int64, tag = "2")]
    pub(crate) pod_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ConfigurationRequest {
    #[prost(string, tag = "1")]
    pub(crate) commit_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) agent_meta: Option<AgentMeta>,
    #[prost(bool, tag = "3")]
    pub(crate) skip_register: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ConfigurationResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) configuration: Option<AgentConfiguration>,
    #[prost(string, tag = "2")]
    pub(crate) commit_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AgentConfiguration {
    #[prost(message, optional, tag = "2")]
    pub(crate) observability: Option<Observability>,
    #[prost(int64, tag = "4")]
    pub(crate) agent_id: i64,
    #[prost(string, tag = "8")]
    pub(crate) project_path: String,
    #[prost(message, optional, tag = "10")]
    pub(crate) flux: Option<Flux>,
    #[prost(string, tag = "11")]
    pub(crate) gitlab_external_url: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Observability {
    #[prost(message, optional, tag = "1")]
    pub(crate) logging: Option<Logging>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Logging {
    #[prost(int32, tag = "1")]
    pub(crate) level: i32,
    #[prost(int32, optional, tag = "2")]
    pub(crate) grpc_level: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Flux {
    #[prost(string, tag = "1")]
    pub(crate) webhook_receiver_url: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Project {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReconcileProjectsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) project: Vec<Project>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReconcileProjectsResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) project: Option<Project>,
}

/// Returns fields with one value each.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Fields {
    let mut map = Fields::new();
    for (name, value) in fields {
        map.entry((*name).to_owned()).or_default().value.push((*value).to_owned());
    }
    map
}

/// Returns the descriptor of GitLab's agentk.
pub(crate) fn descriptor() -> AgentStep {
    descriptor_of(&[(KUBERNETES, "MakeRequest")])
}

pub(crate) fn descriptor_of(methods: &[(&str, &str)]) -> AgentStep {
    let services = methods.iter().map(|(service, method)| Service {
        name: (*service).to_owned(),
        methods: vec![Method { name: (*method).to_owned() }],
    });
    AgentStep::Descriptor(Descriptor {
        agent_descriptor: Some(AgentDescriptor { services: services.collect() }),
    })
}

/// Returns the first step of a response.
pub(crate) fn grpc_header() -> AgentStep {
    AgentStep::Header(Meta { meta: fields(&[("content-type", "application/grpc+proto")]) })
}

/// Returns the step with a part of an HTTP response.
pub(crate) fn part(part: ResponsePart) -> AgentStep {
    let data = prost::Message::encode_to_vec(&HttpResponse { part: Some(part) });
    AgentStep::Message(Payload { data })
}

pub(crate) fn head(status: u16, headers: &[(&str, &str)]) -> AgentStep {
    part(ResponsePart::Header(ResponseHeader {
        response: Some(ResponseHead {
            status_code: status.into(),
            status: format!("{status} text"),
            header: fields(headers),
        }),
    }))
}

pub(crate) fn data(data: &[u8]) -> AgentStep {
    part(ResponsePart::Data(Payload { data: data.to_vec() }))
}

pub(crate) fn upgrade_data(data: &[u8]) -> AgentStep {
    part(ResponsePart::UpgradeData(Payload { data: data.to_vec() }))
}

pub(crate) fn http_trailer() -> AgentStep {
    part(ResponsePart::Trailer(Empty {}))
}

pub(crate) fn grpc_trailer() -> AgentStep {
    AgentStep::Trailer(Meta::default())
}

/// Returns the steps of a complete response.
pub(crate) fn response(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<AgentStep> {
    let mut steps = vec![grpc_header(), head(status, headers)];
    steps.extend(body.chunks(32 << 10).map(data));
    steps.extend([http_trailer(), grpc_trailer()]);
    steps
}

/// Returns the steps of a failed request.
pub(crate) fn failure(code: i32, message: &str) -> Vec<AgentStep> {
    let status = Some(Status { code, message: message.to_owned() });
    let meta = fields(&[("content-type", "application/grpc+proto")]);
    vec![
        AgentStep::Header(Meta::default()),
        AgentStep::Trailer(Meta { meta }),
        AgentStep::Error(Failure { status }),
    ]
}
