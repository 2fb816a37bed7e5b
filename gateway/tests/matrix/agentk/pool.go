package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
)

const (
	// minIdle is the number of streams that wait for a request.
	minIdle = 2
	// step is the most streams that are opened at once.
	step = 10

	firstWait   = time.Second
	longestWait = 20 * time.Second
	// stableTime is the time after which the next wait is the first one again.
	stableTime = 25 * time.Second
)

// pool has the streams for requests. Each carries one request, and then another one replaces it.
type pool struct {
	ctx     context.Context
	agent   *agent
	max     int
	streams sync.WaitGroup

	mutex sync.Mutex
	// all counts the streams, also those that are being opened. open ones wait for a request, busy ones have it.
	all, open, busy int
	// registered means that kas has accepted the token.
	registered, connected bool
}

func (p *pool) start(ctx context.Context, agent *agent, max int) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.ctx, p.agent, p.max = ctx, agent, max
	p.add(minIdle)
}

// add opens further streams.
func (p *pool) add(count int) {
	for range min(count, p.max-p.all) {
		p.all++
		p.streams.Go(p.keepOpen)
	}
}

// keepOpen opens one stream after another, while there are not enough idle ones.
func (p *pool) keepOpen() {
	wait := backoff{first: firstWait}
	for p.ctx.Err() == nil {
		served, err := p.connect()
		if served || p.ctx.Err() != nil {
			continue
		}
		// kas ends idle streams without an error, so that agentk opens them in another connection.
		if !errors.Is(err, io.EOF) {
			slog.Warn("stream failed", "error", err)
			p.lost()
			wait.sleep(p.ctx)
		}
		if p.isSurplus() {
			return
		}
	}
}

// connect opens a stream, and returns whether it had a request, once that is answered.
func (p *pool) connect() (bool, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The end of the process cancels a stream without a request.
	detach := context.AfterFunc(p.ctx, cancel)
	defer detach()
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := p.agent.conn.NewStream(ctx, description, "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel/Connect")
	if err != nil {
		return false, err
	}
	services := []*service{{Name: kubernetesService, Methods: []*method{{Name: kubernetesMethod}}}}
	first := new(connectResponse)
	// Without success, the error is that of the stream.
	sent := stream.SendMsg(&connectRequest{Descriptor: &descriptor{Agent: &agentDescriptor{Services: services}}})
	if sent == nil {
		p.opened()
	}
	err = stream.RecvMsg(first)
	if sent == nil {
		p.closed()
	}
	if err != nil {
		return false, err
	}
	if !detach() {
		return false, ctx.Err()
	}
	if first.RequestInfo == nil {
		return false, errors.New("kas sent no request")
	}
	p.begin()
	defer p.end()
	p.agent.serve(stream, first.RequestInfo)
	return true, nil
}

func (p *pool) opened() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.open++
	p.logConnected()
}

func (p *pool) closed() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.open--
}

// begin counts a request, and opens further streams if too few are idle.
func (p *pool) begin() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.busy++
	if p.all-p.busy < minIdle {
		p.add(step)
	}
}

func (p *pool) end() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.busy--
}

// isSurplus returns whether a stream need not be opened again.
func (p *pool) isSurplus() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.all-p.busy <= minIdle {
		return false
	}
	p.all--
	return true
}

// admitted notes that kas has accepted the token.
func (p *pool) admitted() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.registered = true
	p.logConnected()
}

// lost notes that a stream failed.
func (p *pool) lost() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.connected = false
}

func (p *pool) logConnected() {
	if p.registered && p.open >= minIdle && !p.connected {
		p.connected = true
		slog.Info("connected", "streams", p.open)
	}
}

func (p *pool) active() int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.busy
}

// backoff is the time between tries.
type backoff struct {
	first, wait time.Duration
	last        time.Time
}

// sleep waits longer after each try, with jitter.
func (b *backoff) sleep(ctx context.Context) {
	if b.wait = b.wait * 8 / 5; b.wait == 0 || time.Since(b.last) > stableTime {
		b.wait = b.first
	}
	b.wait = min(b.wait, longestWait)
	sleep(ctx, time.Duration(float64(b.wait)*(0.8+0.4*rand.Float64())))
	b.last = time.Now()
}

// sleep waits, or until the context ends.
func sleep(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}
