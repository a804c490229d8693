// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdLock is concurrency.Mutex. A session is a holder: two workers with one
// would share every key.
type etcdLock struct {
	client   *clientv3.Client
	sessions []*concurrency.Session
}

func newEtcd(t task) (contestant, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{t.Etcd}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	l := &etcdLock{client: client}
	for range t.Workers {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(60))
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		l.sessions = append(l.sessions, s)
	}
	return l, nil
}

func (l *etcdLock) Acquire(ctx context.Context, worker int, key string) (held, error) {
	m := concurrency.NewMutex(l.sessions[worker], "/"+key)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return release(m.Unlock), nil
}

func (l *etcdLock) Try(ctx context.Context, worker int, key string) (held, error) {
	m := concurrency.NewMutex(l.sessions[worker], "/"+key)
	err := m.TryLock(ctx)
	switch {
	case errors.Is(err, concurrency.ErrLocked):
		return nil, errRefused
	case err != nil:
		return nil, err
	}
	return release(m.Unlock), nil
}

// Close leaves the sessions to the end of their leases: revoking a thousand of
// them one by one would take longer than the measurement.
func (l *etcdLock) Close() error { return l.client.Close() }

// serveEtcd runs a server of one node, with fsync as is its default, until
// serve returns.
func serveEtcd(dir string, serve func(endpoint string)) error {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.Logger = "zap"
	cfg.LogLevel = "fatal"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = anyPort, anyPort
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		return fmt.Errorf("etcd was not ready within 30 s (pid %d)", os.Getpid())
	}
	serve(e.Clients[0].Addr().String())
	return nil
}
