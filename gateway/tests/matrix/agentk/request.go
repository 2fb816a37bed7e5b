package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
)

const (
	kubernetesService = "gitlab.agent.kubernetes_api.rpc.KubernetesApi"
	kubernetesMethod  = "MakeRequest"
	// maxChunk is the most bytes of a body in one message.
	maxChunk = 32 << 10
)

// tunneledRequest is the one request of a stream.
type tunneledRequest struct {
	agent  *agent
	stream grpc.ClientStream
	// The bytes of kas: those of the body, and those of the connection that it becomes after an upgrade.
	body, upgrade *io.PipeWriter
	// complete is closed when kas has sent everything, or will send nothing more.
	complete chan struct{}
	// begun means that the first step of the response was sent.
	begun bool
}

// serve answers a request until kas ends the stream.
func (a *agent) serve(stream grpc.ClientStream, info *requestInfo) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	body, bodyWriter := io.Pipe()
	upgrade, upgradeWriter := io.Pipe()
	r := &tunneledRequest{agent: a, stream: stream, body: bodyWriter, upgrade: upgradeWriter, complete: make(chan struct{})}
	header, err := r.receiveHeader(info)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := r.receive()
		bodyWriter.CloseWithError(err)
		upgradeWriter.CloseWithError(err)
		cancel()
	}()
	if err == nil {
		err = r.respond(ctx, header, body, upgrade)
	}
	// The rest of the request is discarded.
	body.Close()
	upgrade.Close()
	if err != nil {
		slog.Info("request failed", "error", err)
		r.sendError(err)
	}
	stream.CloseSend()
	<-ended
}

func (r *tunneledRequest) receiveHeader(info *requestInfo) (*requestHeader, error) {
	if info.MethodName != "/"+kubernetesService+"/"+kubernetesMethod {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", info.MethodName)
	}
	step, part := new(connectResponse), new(httpRequest)
	if err := r.stream.RecvMsg(step); err != nil {
		return nil, err
	}
	if step.Message == nil || unmarshal(step.Message.Data, part) != nil || part.Header == nil || part.Header.Request == nil {
		return nil, status.Error(codes.InvalidArgument, "the request does not begin with its header")
	}
	return part.Header, nil
}

// receive passes on what kas sends after the header, until kas ends the stream, and returns the reason.
func (r *tunneledRequest) receive() error {
	complete := sync.OnceFunc(func() { close(r.complete) })
	defer complete()
	for {
		step, part := new(connectResponse), new(httpRequest)
		if err := r.stream.RecvMsg(step); errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
		if step.Message != nil {
			if err := unmarshal(step.Message.Data, part); err != nil {
				return err
			}
		}
		// A write fails if the API server needs no more.
		switch {
		case step.CloseSend != nil:
			r.body.Close()
			r.upgrade.Close()
			complete()
		case part.Data != nil:
			r.body.Write(part.Data.Data)
		case part.Trailer != nil:
			r.body.Close()
		case part.UpgradeData != nil:
			r.upgrade.Write(part.UpgradeData.Data)
		}
	}
}

// respond sends the request to the API server, and its response to kas.
func (r *tunneledRequest) respond(ctx context.Context, header *requestHeader, body, upgrade io.ReadCloser) error {
	request, err := r.agent.request(ctx, header, body)
	if err != nil {
		return err
	}
	response, err := r.agent.cluster.send(request)
	if err != nil {
		return status.Errorf(codes.Unavailable, "gRPC -> HTTP: %v", err)
	}
	defer response.Body.Close()
	slog.Info("response", "method", request.Method, "path", request.URL.Path, "status", response.StatusCode)
	response.Header.Add("Via", fmt.Sprintf("%d.%d %s", response.ProtoMajor, response.ProtoMinor, r.agent.product()))
	contentType := &metadata{Meta: fromHeader(map[string][]string{"content-type": {"application/grpc+proto"}})}
	if err := r.send(&connectRequest{Header: contentType}); err != nil {
		return err
	}
	head := &responseHead{
		StatusCode: int32(response.StatusCode), Status: response.Status, Header: fromHeader(response.Header),
	}
	if err := r.sendPart(&httpResponse{Header: &responseHeader{Response: head}}); err != nil {
		return err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		wrap := func(data *chunk) *httpResponse { return &httpResponse{Data: data} }
		if err := r.copy(response.Body, wrap); err != nil {
			return err
		}
	}
	if err := r.sendPart(&httpResponse{Trailer: &empty{}}); err != nil {
		return err
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		// net/http does not cancel an upgraded connection.
		defer context.AfterFunc(ctx, func() { response.Body.Close() })()
		if err := r.splice(response.Body.(io.ReadWriter), upgrade); err != nil {
			return err
		}
	}
	// Like GitLab's agentk, which ends the response after the request.
	<-r.complete
	return r.send(&connectRequest{Trailer: &metadata{}})
}

// splice copies both directions of an upgraded connection. Like GitLab's agentk, it passes the end of neither direction on alone.
func (r *tunneledRequest) splice(cluster io.ReadWriter, upgrade io.Reader) error {
	failed := make(chan error, 1)
	go func() {
		if _, err := io.Copy(cluster, upgrade); err != nil {
			failed <- status.Errorf(codes.Canceled, "gRPC -> HTTP: write to the upgraded connection: %v", err)
		}
	}()
	wrap := func(data *chunk) *httpResponse { return &httpResponse{UpgradeData: data} }
	if err := r.copy(cluster, wrap); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case <-r.complete:
		return nil
	}
}

// copy sends bytes of the API server, as soon as they arrive.
func (r *tunneledRequest) copy(from io.Reader, wrap func(*chunk) *httpResponse) error {
	buffer := make([]byte, maxChunk)
	for {
		read, err := from.Read(buffer)
		if read > 0 {
			if err := r.sendPart(wrap(&chunk{Data: buffer[:read]})); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return status.Errorf(codes.Canceled, "gRPC -> HTTP: read HTTP response body: %v", err)
		}
	}
}

func (r *tunneledRequest) sendError(err error) {
	if !r.begun {
		r.send(&connectRequest{Header: &metadata{}})
	}
	contentType := fromHeader(map[string][]string{"content-type": {"application/grpc+proto"}})
	r.send(&connectRequest{Trailer: &metadata{Meta: contentType}})
	r.send(&connectRequest{Error: &errorStatus{Status: status.Convert(err).Proto()}})
}

func (r *tunneledRequest) sendPart(part protoadapt.MessageV1) error {
	data, err := marshal(part)
	if err != nil {
		return err
	}
	return r.send(&connectRequest{Message: &chunk{Data: data}})
}

func (r *tunneledRequest) send(step *connectRequest) error {
	r.begun = true
	return r.stream.SendMsg(step)
}

// request makes the request to the API server.
func (a *agent) request(ctx context.Context, header *requestHeader, body io.ReadCloser) (*http.Request, error) {
	if header.ContentLength != nil && *header.ContentLength == 0 {
		body = http.NoBody
	}
	head, target := header.Request, *a.cluster.server
	target.Path += head.Path
	target.RawQuery = url.Values(toHeader(head.Query)).Encode()
	request, err := http.NewRequestWithContext(ctx, head.Method, target.String(), body)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	request.Header = toHeader(head.Header)
	request.Header.Add("Via", "gRPC/1.0 "+a.product())
	extra := new(headerExtra)
	if header.Extra != nil {
		if err := unmarshal(header.Extra.Value, extra); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if extra.Identity == nil {
		return request, nil
	}
	for name := range request.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			what := "nested impersonation is not supported - agent is already configured to impersonate an identity"
			return nil, status.Error(codes.Unavailable, what)
		}
	}
	extra.Identity.addTo(request.Header)
	return request, nil
}

// addTo adds the headers with which the API server impersonates.
func (i *identity) addTo(header http.Header) {
	header["Impersonate-User"] = []string{i.Username}
	if i.Groups != nil {
		header["Impersonate-Group"] = i.Groups
	}
	if i.UID != "" {
		header["Impersonate-Uid"] = []string{i.UID}
	}
	for _, extra := range i.Extra {
		name := url.PathEscape(strings.ToLower(extra.Key))
		name = strings.NewReplacer(":", "%3a", "@", "%40", "=", "%3d").Replace(name)
		header["Impersonate-Extra-"+name] = extra.Values
	}
}
