//! Callers of the internal API.

use std::{convert::Infallible, future::ready, sync::Arc, time::SystemTime};

use access::ApiTokenVerifier;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use environments_wire::EnvironmentSources;
use gateway::test_support::{AddressRules, ApiContext, ApiParts, ApiServer};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Request, Response, Uri, header::AUTHORIZATION, uri::PathAndQuery};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kas_core::feature::KasFeature as _;
use kas_environments::{AgentEnvironments, EnvironmentsFeature, ManagedResourcesConfig};
use prost::Message;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::DuplexStream;
use tonic::{Status, client::Grpc, transport::Endpoint};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tunnel::Body;

use crate::{
    fleet::secret,
    world::{CALLER, World},
};

/// Returns a signed JWT with this header and these claims.
pub fn jwt(secret: &[u8], head: &Value, claims: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(head), part(claims));
    let signature =
        Hmac::<Sha256>::new_from_slice(secret).unwrap().chain_update(&message).finalize().into_bytes();
    format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// Returns a valid JWT.
pub fn valid_token() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    jwt(&[1; 32], &json!({"alg": "HS256", "typ": "JWT"}), &json!({"aud": "gitlab-kas", "exp": now + 60}))
}

/// Connects to the internal API of a replica.
pub fn connect(world: &World) -> DuplexStream {
    open(world, None, AddressRules::default())
}

/// Connects to an internal API with these environments, and nothing else.
pub fn connect_with(world: &World, environments: EnvironmentSources) -> DuplexStream {
    open(world, Some(environments), AddressRules::default())
}

/// Connects to the internal API of a replica with these rules about addresses.
pub fn connect_with_addresses(world: &World, addresses: AddressRules) -> DuplexStream {
    open(world, None, addresses)
}

fn open(world: &World, environments: Option<EnvironmentSources>, addresses: AddressRules) -> DuplexStream {
    connect_to(&server(world, environments, addresses))
}

/// Connects to an internal API.
pub fn connect_to(api: &Arc<ApiServer>) -> DuplexStream {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(api).server().serve(far, CALLER, Arc::default()));
    near
}

/// Returns the internal API of a replica, for several connections. With these environments it has nothing else.
pub fn server(
    world: &World,
    environments: Option<EnvironmentSources>,
    addresses: AddressRules,
) -> Arc<ApiServer> {
    let (kas, context) = (&world.kas, ApiContext::new(&world.kas.agents));
    let routes = match environments {
        Some(environments) => {
            let feature = EnvironmentsFeature {
                replica: kas.agents.replica,
                managed_resources: ManagedResourcesConfig::default(),
                named: AgentEnvironments::new(None),
                sources: environments,
                deployments: kas.deployments.clone(),
            };
            feature.api_routes(&context, &kas.callers)
        }
        None => kas.features.api_routes(&context, &kas.callers),
    };
    let parts = ApiParts { verifier: ApiTokenVerifier::new(secret(1), None), addresses, routes };
    Arc::new(ApiServer::new(&kas.agents, parts))
}

/// Sends a request to the internal API on a new connection.
pub async fn send(world: &World, request: Request<Body>) -> Response<Incoming> {
    send_over(connect(world), request).await
}

/// Sends a request on a connection to the internal API.
pub async fn send_over(io: DuplexStream, request: Request<Body>) -> Response<Incoming> {
    let io = TokioIo::new(io);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(request).await.unwrap()
}

/// Calls an RPC of the internal API with this value of `authorization`.
pub async fn call<Q, R>(
    world: &World,
    method: &'static str,
    authorization: Option<&str>,
    message: Q,
) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let world = world.clone();
    let connector = service_fn(move |_: Uri| ready(Ok::<_, Infallible>(TokioIo::new(connect(&world)))));
    let channel = Endpoint::from_static("http://kas").connect_with_connector_lazy(connector);
    let mut request = tonic::Request::new(message);
    if let Some(authorization) = authorization {
        request.metadata_mut().insert("authorization", authorization.parse().unwrap());
    }
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<Q, R>::default();
    Ok(grpc.unary(request, PathAndQuery::from_static(method), codec).await?.into_inner())
}

/// Sends a GET request with a valid JWT to the internal API.
pub async fn get(world: &World, path: &str) -> Response<Incoming> {
    send(world, valid_request(path)).await
}

/// Returns a GET request with a valid JWT.
pub fn valid_request(path: &str) -> Request<Body> {
    let authorization = format!("Bearer {}", valid_token());
    Request::get(path).header(AUTHORIZATION, authorization).body(Body::empty()).unwrap()
}
