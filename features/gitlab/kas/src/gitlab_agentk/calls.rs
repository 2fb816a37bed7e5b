//! The methods that GitLab's agentk calls.

use std::{error::Error as _, sync::Arc};

use gitlab_tunnel::{
    KUBERNETES_METHOD, MAX_MESSAGE, Order,
    messages::{
        AgentStep, ConfigurationRequest, ConnectRequest, Descriptor, Empty, HttpRequest,
        ReconcileProjectsRequest, RegisterRequest,
    },
};
use http::{Request, Response};
use http_body::Body as _;
use prost::Message as _;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming, body::Body as GrpcBody};
use tower::service_fn;
use tunnel::{Body, StreamMonitor};

use super::{
    GitlabConnection, call_body::CallBody, codec::grpc, configuration, flux, gitlab_access, pool::Steps,
};

const CONNECT: &str = "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel/Connect";
const GET_CONFIGURATION: &str = "/gitlab.agent.agent_configuration.rpc.AgentConfiguration/GetConfiguration";
const REGISTER: &str = "/gitlab.agent.agent_registrar.rpc.AgentRegistrar/Register";
const UNREGISTER: &str = "/gitlab.agent.agent_registrar.rpc.AgentRegistrar/Unregister";
const RECONCILE_PROJECTS: &str = "/gitlab.agent.flux.rpc.GitLabFlux/ReconcileProjects";
const GITLAB_ACCESS: &str = "/gitlab.agent.gitlab_access.rpc.GitlabAccess/MakeRequest";
/// The longest message of a call in bytes: pieces of bodies have 32 KiB, and a tunnel forwards heads of at most 128 KiB. kas keeps a
/// message until it is complete, and each of the calls of a connection can have such a message.
const MAX_REQUEST: usize = 256 << 10;
/// The longest list of projects, in bytes.
const MAX_PROJECT_LIST: usize = 1 << 20;
/// The longest descriptor, in bytes.
const MAX_DESCRIPTOR: usize = 64 << 10;
/// The value of the label `method` for a method that kas does not have.
const UNKNOWN: &str = "unknown";

/// Authenticates a call and handles it. The response begins before the call has ended.
pub(super) async fn handle(connection: Arc<GitlabConnection>, request: Request<Body>) -> Response<Body> {
    let metrics = connection.gitlab.metrics.clone();
    let methods = [CONNECT, GET_CONFIGURATION, REGISTER, UNREGISTER, RECONCILE_PROJECTS, GITLAB_ACCESS];
    let method = methods.into_iter().find(|method| *method == request.uri().path()).unwrap_or(UNKNOWN);
    let (head, body) = request.into_parts();
    let monitor = body.monitor();
    let admitted = connection.admit(&head.headers).await.and_then(|agent| {
        CallBody::new(body, agent.memory()).map_err(|error| Status::resource_exhausted(error.to_string()))
    });
    let response = match admitted {
        Ok(body) => dispatch(connection, method, Request::from_parts(head, body), monitor).await,
        Err(status) => status.into_http(),
    };
    let code = Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
    metrics.count_call(method.rsplit_once('.').map_or(method, |(_, method)| method), code);
    // gRPC needs the end of the stream together with the head of a response that has no messages.
    response.map(|body| if body.is_end_stream() { Body::empty() } else { Body::new(body) })
}

async fn dispatch(
    connection: Arc<GitlabConnection>,
    method: &'static str,
    request: Request<CallBody>,
    monitor: Option<StreamMonitor>,
) -> Response<GrpcBody> {
    match method {
        CONNECT => {
            let service = service_fn(move |request: tonic::Request<Streaming<ConnectRequest>>| {
                let (connection, monitor) = (Arc::clone(&connection), monitor.clone());
                async move { connect(&connection, request.into_inner(), monitor).await.map(tonic::Response::new) }
            });
            grpc(MAX_REQUEST).streaming(service, request).await
        }
        GET_CONFIGURATION => {
            let service = service_fn(move |request: tonic::Request<ConfigurationRequest>| {
                let connection = Arc::clone(&connection);
                async move { configuration::follow(&connection, request.into_inner()).map(tonic::Response::new) }
            });
            grpc(MAX_REQUEST).server_streaming(service, request).await
        }
        REGISTER => {
            let service = service_fn(move |request: tonic::Request<RegisterRequest>| {
                connection.describe(request.into_inner().agent_meta);
                async { Ok(tonic::Response::new(Empty {})) }
            });
            grpc(MAX_REQUEST).unary(service, request).await
        }
        UNREGISTER => {
            let service = service_fn(|_: tonic::Request<Empty>| async { Ok(tonic::Response::new(Empty {})) });
            grpc(MAX_REQUEST).unary(service, request).await
        }
        RECONCILE_PROJECTS => {
            let service = service_fn(move |request: tonic::Request<ReconcileProjectsRequest>| {
                let connection = Arc::clone(&connection);
                async move { flux::follow(&connection, request.into_inner()).map(tonic::Response::new) }
            });
            grpc(MAX_PROJECT_LIST).server_streaming(service, request).await
        }
        GITLAB_ACCESS => {
            let service = service_fn(move |request: tonic::Request<Streaming<HttpRequest>>| {
                let connection = Arc::clone(&connection);
                async move {
                    let response = gitlab_access::forward(&connection, request.into_inner()).await;
                    response.map(tonic::Response::new)
                }
            });
            grpc(MAX_MESSAGE).streaming(service, request).await
        }
        _ => {
            let path: String =
                request.uri().path().chars().filter(char::is_ascii_graphic).take(200).collect();
            connection.report_unknown(&path);
            Status::unimplemented(format!("this kas has no method {path}")).into_http()
        }
    }
}

/// Adds a stream to those that wait for a request, once its descriptor has arrived.
async fn connect(
    connection: &GitlabConnection,
    mut incoming: Streaming<ConnectRequest>,
    monitor: Option<StreamMonitor>,
) -> Result<Steps, Status> {
    let violation = |what: String| {
        connection.gitlab.metrics.count_violation();
        Status::invalid_argument(what)
    };
    let first = timeout(connection.server.handshake_timeout, incoming.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("no descriptor arrived in time"))?;
    let first = first.map_err(|status| match status.source() {
        // The connection has failed.
        Some(_) => status,
        None => violation(status.message().to_owned()),
    })?;
    let (Some(first), Some(monitor)) = (first, monitor) else {
        return Err(Status::invalid_argument("the stream has no descriptor"));
    };
    let step = first.step;
    Order::of_agent().agent_step(step.as_ref()).map_err(|error| violation(error.to_string()))?;
    let Some(AgentStep::Descriptor(descriptor)) = step else {
        return Err(Status::internal("the first step is a descriptor"));
    };
    if descriptor.encoded_len() > MAX_DESCRIPTOR {
        return Err(violation(format!("the descriptor has more than {MAX_DESCRIPTOR} bytes")));
    }
    if !serves_kubernetes(&descriptor) {
        return Err(violation(format!("the descriptor does not have {KUBERNETES_METHOD}")));
    }
    Ok(connection.pool.add(incoming, monitor))
}

fn serves_kubernetes(descriptor: &Descriptor) -> bool {
    let services = descriptor.agent_descriptor.iter().flat_map(|agent| &agent.services);
    let mut methods = services.flat_map(|service| {
        service.methods.iter().map(|method| format!("/{}/{}", service.name, method.name))
    });
    methods.any(|method| method == KUBERNETES_METHOD)
}
