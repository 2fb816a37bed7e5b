// A small agentk with GitLab's protocol, for the end-to-end tests of kas.
//
// Its HTTP/2, gRPC and WebSocket are those of Go, so that it sees faults of kas which our own agentk cannot see: both ends of that are
// written with the same libraries.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
)

const (
	commit         = "00000000"
	shutdownGrace  = 25 * time.Second
	registerPeriod = 5 * time.Minute
	// configurationWait is the first wait after a failure, as long as that of GitLab's agentk.
	configurationWait = 10 * time.Second
)

// agent is one process of agentk.
type agent struct {
	version, token string
	podID          int64
	// secure means that the token is sent with TLS of gRPC only.
	secure  bool
	cluster *cluster
	conn    *grpc.ClientConn
	pool    pool
}

func main() {
	kasAddress := flag.String("kas-address", "", "the `URL` of kas: ws://, wss://, grpc:// or grpcs://")
	tokenFile := flag.String("token-file", "", "the `file` with the token of the agent")
	caFile := flag.String("ca-cert-file", "", "the `file` with further certificate authorities of kas")
	kubeconfigFile := flag.String("kubeconfig", "", "the `file` whose current context is the cluster")
	tunnels := flag.Int("tunnels", 500, "the largest number of streams for requests, two of which are idle")
	version := flag.String("agent-version", "v18.5.0", "the version that agentk reports")
	flag.Parse()
	a := &agent{version: *version, podID: rand.Int64()}
	if err := a.configure(*kasAddress, *tokenFile, *caFile, *kubeconfigFile); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	a.run(ctx, max(*tunnels, minIdle))
}

func (a *agent) configure(kasAddress, tokenFile, caFile, kubeconfigFile string) error {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	a.token = strings.TrimSpace(string(token))
	if a.cluster, err = loadCluster(kubeconfigFile); err != nil {
		return err
	}
	settings := &tls.Config{}
	if caFile != "" {
		authority, err := os.ReadFile(caFile)
		if err != nil {
			return err
		}
		if settings.RootCAs, err = x509.SystemCertPool(); err != nil {
			return err
		}
		settings.RootCAs.AppendCertsFromPEM(authority)
	}
	a.conn, err = a.dial(kasAddress, settings)
	return err
}

// dial makes the connection of gRPC, which connects and reconnects by itself.
func (a *agent) dial(kasAddress string, settings *tls.Config) (*grpc.ClientConn, error) {
	address, err := url.Parse(kasAddress)
	if err != nil {
		return nil, err
	}
	transport := insecure.NewCredentials()
	options := []grpc.DialOption{
		grpc.WithUserAgent(a.product()),
		grpc.WithPerRPCCredentials(a),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 55 * time.Second, PermitWithoutStream: true}),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)),
	}
	target := "dns:" + address.Host
	switch address.Scheme {
	case "grpc":
	case "grpcs":
		a.secure, transport = true, credentials.NewTLS(settings)
	case "ws", "wss":
		target = "passthrough:///" + kasAddress
		options = append(options, grpc.WithContextDialer(a.webSocketDialer(settings)))
	default:
		return nil, fmt.Errorf("--kas-address has an unknown scheme: %s", address.Scheme)
	}
	return grpc.NewClient(target, append(options, grpc.WithTransportCredentials(transport))...)
}

func (a *agent) webSocketDialer(settings *tls.Config) func(context.Context, string) (net.Conn, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = settings
	options := &websocket.DialOptions{
		HTTPClient:   &http.Client{Transport: transport},
		HTTPHeader:   http.Header{"User-Agent": {a.product()}},
		Subprotocols: []string{"ws-tunnel"},
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, _, err := websocket.Dial(ctx, address, options)
		if err != nil {
			return nil, err
		}
		conn.SetReadLimit(-1)
		return websocket.NetConn(context.Background(), conn, websocket.MessageBinary), nil
	}
}

// GetRequestMetadata returns the metadata of each call.
func (a *agent) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + a.token}, nil
}

// RequireTransportSecurity returns whether gRPC itself has to use TLS. With wss://, the WebSocket does.
func (a *agent) RequireTransportSecurity() bool { return a.secure }

// run serves requests until the context ends, and then lets those in flight end.
func (a *agent) run(ctx context.Context, tunnels int) {
	a.pool.start(ctx, a, tunnels)
	var calls sync.WaitGroup
	calls.Go(func() { a.register(ctx) })
	calls.Go(func() { a.configuration(ctx) })
	calls.Go(func() { a.logState(ctx) })
	<-ctx.Done()
	slog.Info("stopping", "requests", a.pool.active())
	ended := make(chan struct{})
	go func() {
		a.pool.streams.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(shutdownGrace):
		slog.Warn("requests cut", "requests", a.pool.active())
	}
	calls.Wait()
	a.conn.Close()
	slog.Info("stopped")
}

// register reports this process, at the start and then periodically.
func (a *agent) register(ctx context.Context) {
	wait := backoff{first: firstWait}
	for ctx.Err() == nil {
		meta := a.meta()
		version, err := a.cluster.version(ctx)
		if err != nil {
			slog.Warn("version of the cluster not known", "error", err)
		} else {
			meta.KubernetesVersion = version
		}
		request := &registerRequest{AgentMeta: meta, PodID: a.podID}
		if err := a.conn.Invoke(ctx, "/gitlab.agent.agent_registrar.rpc.AgentRegistrar/Register", request, new(empty)); err != nil {
			slog.Warn("not registered", "error", err)
			wait.sleep(ctx)
			continue
		}
		slog.Info("registered")
		a.pool.admitted()
		sleep(ctx, registerPeriod)
	}
}

// configuration receives the configurations of the agent.
func (a *agent) configuration(ctx context.Context) {
	wait := backoff{first: configurationWait}
	request := &configurationRequest{AgentMeta: a.meta(), SkipRegister: true}
	count := 0
	receive := func() error {
		description := &grpc.StreamDesc{ServerStreams: true}
		method := "/gitlab.agent.agent_configuration.rpc.AgentConfiguration/GetConfiguration"
		stream, err := a.conn.NewStream(ctx, description, method)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(request); err != nil {
			return stream.RecvMsg(new(configurationResponse))
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		for {
			response := new(configurationResponse)
			if err := stream.RecvMsg(response); err != nil {
				return err
			}
			request.CommitID = response.CommitID
			count++
			slog.Info("configuration received", "count", count, "commit", response.CommitID)
		}
	}
	for ctx.Err() == nil {
		err := receive()
		slog.Info("configuration ended", "error", err)
		// kas ends it without an error, so that agentk asks in another connection.
		if !errors.Is(err, io.EOF) {
			wait.sleep(ctx)
		}
	}
}

// logState logs each change of the connection.
func (a *agent) logState(ctx context.Context) {
	state := connectivity.Idle
	for a.conn.WaitForStateChange(ctx, state) {
		state = a.conn.GetState()
		slog.Info("connection", "state", state.String())
	}
}

func (a *agent) meta() *agentMeta {
	return &agentMeta{
		Version: a.version, CommitID: commit, PodNamespace: os.Getenv("POD_NAMESPACE"), PodName: os.Getenv("POD_NAME"),
		KubernetesVersion: new(kubernetesVersion),
	}
}

func (a *agent) product() string { return "gitlab-agent/" + a.version + "/" + commit }
