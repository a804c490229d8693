// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier/driver"
)

// freePort is a port nobody listens on now, below those that the system gives to
// outgoing connections and below those of package stack.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(10_000 + rand.IntN(10_000))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// startCluster forms a cluster of three primaries. It needs Redis 7 for the port
// of the cluster's bus.
func startCluster(t *testing.T) []*stack.Server {
	t.Helper()
	ctx := t.Context()
	var nodes []*stack.Server
	for i, slots := range [][2]int{{0, 5460}, {5461, 10922}, {10923, 16383}} {
		bus := freePort(t)
		node := stack.StartRedis(t, "--cluster-enabled", "yes", "--cluster-port", bus)
		nodes = append(nodes, node)
		c := newClient(t, node.URL(), nil)
		if err := c.Do(ctx, "cluster", "addslotsrange", slots[0], slots[1]).Err(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			continue
		}
		host, port, err := net.SplitHostPort(node.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := newClient(t, nodes[0].URL(), nil).Do(ctx, "cluster", "meet", host, port, bus).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range nodes {
		c := newClient(t, node.URL(), nil)
		eventually(t, 20*time.Second, "the cluster is complete", func() bool {
			info := c.ClusterInfo(context.Background()).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return nodes
}

// On a cluster every call has one key, so that braces in keys, which choose
// slots, do no harm; a wake-up reaches waiters on every node (K3).
func TestFilter_cluster_K3(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	cluster := func() *redis.ClusterClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	client := cluster()
	opts := []redisfast.Option{redisfast.WithPrefix("p:"), redisfast.WithTimeout(time.Second)}
	f, other := newFilter(t, client, opts...), newFilter(t, cluster(), opts...)
	if err := f.Check(t.Context()); err != nil {
		t.Fatal(err)
	}

	keys := []string{"plain", "{a}b", "{b}a", "{}", "}", "{", "}{", "a{b}c{d}", "{{x}}", "wake:{a}", "shop/k\x00\xff"}
	for i := range 20 {
		keys = append(keys, fmt.Sprint("n", i))
	}
	marks := make([]driver.KeyMark, len(keys))
	wakes := make([]<-chan struct{}, len(keys))
	for i, key := range keys {
		marks[i] = driver.KeyMark{Key: key, Mark: newMark()}
		c, stop := other.Wakeups(key)
		defer stop()
		wakes[i] = c
		wantWake(t, c, "confirmation of "+key)
	}
	for round := range 2 {
		if round == 1 { // every node forgets the scripts (K2)
			err := client.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
				return c.ScriptFlush(ctx).Err()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		states, err := f.Refresh(t.Context(), marks)
		if err != nil {
			t.Fatal(err)
		}
		for i, km := range marks {
			if !states[i].Ours {
				t.Fatalf("%q: %+v", km.Key, states[i])
			}
			plant(t, f, km.Key, km.Mark)
			st, err := other.Mark(t.Context(), km.Key, newMark())
			if err != nil {
				t.Fatal(err)
			}
			wantForeign(t, st, km.Mark)
			if st, err = f.Extend(t.Context(), km.Key, km.Mark); err != nil || !st.Ours {
				t.Fatalf("%q: %+v, %v", km.Key, st, err)
			}
			if st, err = f.Overwrite(t.Context(), km.Key, km.Mark); err != nil || !st.Ours {
				t.Fatalf("%q: %+v, %v", km.Key, st, err)
			}
			if err := f.Clear(t.Context(), km.Key, km.Mark.Token, true); err != nil {
				t.Fatal(err)
			}
			wantWake(t, wakes[i], "message of "+km.Key)
		}
	}
	used := 0
	for _, n := range nodes {
		c := newClient(t, n.URL(), nil)
		if size := c.DBSize(t.Context()).Val(); size != 0 {
			t.Errorf("%d keys left", size)
		}
		if strings.Contains(c.Info(t.Context(), "commandstats").Val(), "cmdstat_set:") {
			used++
		}
	}
	if used != 3 {
		t.Errorf("%d nodes were used: the test proves nothing", used)
	}

	// A client for one server does not follow the cluster; it is told so.
	single := openAt(t, nodes[0].URL(), "p:")
	var err error
	for i := 0; i < 50 && err == nil; i++ {
		_, err = single.Mark(t.Context(), fmt.Sprint("s", i), newMark())
	}
	wantClass(t, err, driver.ClassDown)
	if !strings.Contains(err.Error(), "NewClusterClient") {
		t.Error(err)
	}
}

// Through Sentinel the filter works as it does without.
func TestFilter_sentinel(t *testing.T) {
	t.Parallel()
	primary := stack.StartRedis(t)
	host, port, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		t.Fatal(err)
	}
	at := startSentinel(t, host, port)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "shop", SentinelAddrs: []string{at}, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	f := newFilter(t, client, redisfast.WithPrefix("p:"), redisfast.WithTimeout(time.Second))
	eventually(t, 10*time.Second, "Sentinel knows the primary", func() bool { return f.Check(t.Context()) == nil })
	m := newMark()
	plant(t, f, "k", m)
	c, stop := f.Wakeups("k")
	defer stop()
	wantWake(t, c, "confirmation")
	if err := f.Clear(t.Context(), "k", m.Token, true); err != nil {
		t.Fatal(err)
	}
	wantWake(t, c, "message")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := f.Close(ctx); err != nil {
		t.Error(err)
	}
}

// startSentinel runs a Sentinel, which needs a file to write to.
func startSentinel(t *testing.T, host, port string) (addr string) {
	t.Helper()
	binary, err := exec.LookPath("redis-sentinel")
	if err != nil {
		if binary, err = exec.LookPath("redis-server"); err != nil {
			if binary, err = exec.LookPath("valkey-server"); err != nil {
				t.Fatal(err)
			}
		}
	}
	own := freePort(t)
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\nsentinel monitor shop %s %s 1\n", own, host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, config, "--sentinel")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return net.JoinHostPort("127.0.0.1", own)
}
