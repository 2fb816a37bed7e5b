//! A stand-in for Hubble Relay by tonic, which sends the same flows again and again.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use cluster_alerts::messages::{Flow, FlowsContent, GET_FLOWS, GetFlowsRequest, GetFlowsResponse};
use futures_util::stream;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2::Builder, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpListener, runtime::Runtime, time::sleep};
use tonic::{Status, server::Grpc};
use tonic_prost::ProstCodec;

/// The time between two rounds.
const ROUND: Duration = Duration::from_millis(100);

/// A running relay.
pub(crate) struct Hubble {
    /// Its address.
    pub(crate) address: SocketAddr,
    _runtime: Runtime,
}

impl Hubble {
    /// Listens on a port of loopback. Each round sends all of the flows.
    pub(crate) fn start(flows: Vec<Flow>) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let flows = Arc::new(flows);
        runtime.spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                let flows = Arc::clone(&flows);
                let service = service_fn(move |request| respond(Arc::clone(&flows), request));
                let connection =
                    Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service);
                tokio::spawn(connection);
            }
        });
        Self { address, _runtime: runtime }
    }
}

async fn respond(
    flows: Arc<Vec<Flow>>,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    assert_eq!(request.uri().path(), GET_FLOWS);
    let service = tower::service_fn(move |request: tonic::Request<GetFlowsRequest>| {
        let flows = Arc::clone(&flows);
        assert!(request.get_ref().follow);
        let messages = stream::unfold(0_usize, move |number| {
            let flow = flows[number % flows.len()].clone();
            let is_last = (number + 1) % flows.len() == 0;
            async move {
                if is_last {
                    sleep(ROUND).await;
                }
                let content = Some(FlowsContent::Flow(Box::new(flow)));
                Some((Ok::<_, Status>(GetFlowsResponse { content }), number + 1))
            }
        });
        async move { Ok::<_, Status>(tonic::Response::new(messages)) }
    });
    let codec = ProstCodec::<GetFlowsResponse, GetFlowsRequest>::default();
    Ok(Grpc::new(codec).server_streaming(service, request).await)
}
