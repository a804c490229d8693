// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/tier"
)

// runLatency takes turns between a pair of the lock and its round trips alone:
// SET NX on Redis; the update, the read-back and the update of the release on
// MySQL, in their plainest form, each on a connection that does nothing else.
func runLatency(ctx context.Context, t task, begin func(string) window) (measured, error) {
	options, err := redis.ParseURL(t.Redis)
	if err != nil {
		return measured{}, err
	}
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	db, err := pool(t, 1)
	if err != nil {
		return measured{}, err
	}
	defer func() { _ = db.Close() }()

	var redisTook, mysqlTook []time.Duration
	token := slices.Repeat([]byte{7}, 16)
	m, err := runWorkers(ctx, t, begin, func(ctx context.Context, w *worker) {
		key := keyOf(w.rnd.IntN(t.Keys))
		w.pair(ctx, key)

		began := now()
		err := client.SetNX(ctx, "raw:"+key, token, ttl).Err()
		toRedis := now().sub(began)
		began = now()
		err = errors.Join(err, rawPair(ctx, db, namespace+"/raw-"+key, token))
		toMySQL := now().sub(began)
		if err = errors.Join(err, client.Del(ctx, "raw:"+key).Err()); err != nil {
			w.failed(err)
			return
		}
		if w.counts(began, now()) {
			redisTook, mysqlTook = append(redisTook, toRedis), append(mysqlTook, toMySQL)
		}
	})
	if err != nil {
		return m, err
	}
	if len(redisTook) == 0 {
		return m, errors.New("no round trip was measured")
	}
	m.Extra["raw_redis_ms"] = medianOf(redisTook).Seconds() * 1000
	m.Extra["raw_mysql_ms"] = medianOf(mysqlTook).Seconds() * 1000
	return m, nil
}

func rawPair(ctx context.Context, db *sql.DB, key string, token []byte) error {
	_, err := db.ExecContext(ctx, "UPDATE lease SET token = ?, fence = fence + 1, acquired_at = UTC_TIMESTAMP(6),"+
		" expires_at = UTC_TIMESTAMP(6) + INTERVAL 10 SECOND"+
		" WHERE lock_key = ? AND (token IS NULL OR expires_at <= UTC_TIMESTAMP(6))", token, []byte(key))
	if err != nil {
		return err
	}
	var fence uint64
	if err := db.QueryRowContext(ctx, "SELECT fence FROM lease WHERE lock_key = ? AND token = ?", []byte(key), token).Scan(&fence); err != nil {
		return fmt.Errorf("raw claim of %s: %w", key, err)
	}
	_, err = db.ExecContext(ctx, "UPDATE lease SET token = NULL, expires_at = UTC_TIMESTAMP(6) WHERE lock_key = ? AND token = ?", []byte(key), token)
	return err
}

func medianOf(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// runHeld holds as many leases as there are keys for three renewals each.
func runHeld(ctx context.Context, t task, begin func(string) window) (measured, error) {
	lock, err := newTierlock(t)
	if err != nil {
		return measured{}, err
	}
	db, err := pool(t, 1)
	if err != nil {
		return measured{}, err
	}
	defer func() { _ = db.Close() }()
	m := measured{Extra: make(map[string]float64)}
	leases := make([]*tier.Lease, t.Keys)
	before, goroutines := heap(), runtime.NumGoroutine()
	if err := acquireAll(ctx, lock, leases); err != nil {
		return m, err
	}
	after := heap()

	begin("ready")
	from, err := statements(ctx, db)
	if err != nil {
		return m, err
	}
	time.Sleep(t.ttl())
	until, err := statements(ctx, db)
	if err != nil {
		return m, err
	}
	m.Extra["statements_per_interval"] = (until - from) / 3
	m.Extra["heap_mib"] = after - before
	m.Extra["goroutines"] = float64(runtime.NumGoroutine() - goroutines)
	m.Grants = int64(len(leases))
	for _, l := range leases {
		if err := l.Err(); err != nil {
			m.Errors++
			m.LastError = err.Error()
		}
	}
	m.Extra["lost"] = float64(m.Errors)
	return m, nil // its end frees nothing: the database is dropped
}

func acquireAll(ctx context.Context, lock contestant, leases []*tier.Lease) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, 256)
	for range cap(errs) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(leases) {
					return
				}
				h, err := lock.Acquire(ctx, 0, "held-"+strconv.Itoa(i))
				if err != nil {
					errs <- err
					return
				}
				leases[i] = h.(*tier.Lease)
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

// heap is what is live, in MiB.
func heap() float64 {
	runtime.GC()
	runtime.GC() // the first may only have begun to empty pools
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc) / (1 << 20)
}

// statements is how many the server has executed, but for those that ask.
func statements(ctx context.Context, db *sql.DB) (float64, error) {
	var name string
	var n float64
	err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	return n, err
}

// openFor is how long the guarded transaction stays open.
const openFor = 10 * time.Second

// runOpen holds leases, one of them confirmed in a transaction that stays open
// in the second half of the window, while workers take other keys. It tells the
// throughput of both halves, and the least time any of the other leases had left.
func runOpen(ctx context.Context, t task, begin func(string) window) (measured, error) {
	const held = 1000
	lock, err := newTierlock(t)
	if err != nil {
		return measured{}, err
	}
	leases := make([]*tier.Lease, held)
	if err := acquireAll(ctx, lock, leases); err != nil {
		return measured{}, err
	}
	db, err := pool(t, 1)
	if err != nil {
		return measured{}, err
	}
	defer func() { _ = db.Close() }()

	w := begin("ready")
	half := w.From.add(w.Until.sub(w.From) / 2)
	var pairs [2]atomic.Int64
	var all sync.WaitGroup
	for i := range t.Workers {
		all.Go(func() {
			for n := 0; now() < w.Until; n++ {
				h, err := lock.Acquire(ctx, i, keyOf(t.Keys*i/t.Workers+n%max(t.Keys/t.Workers, 1)))
				if err != nil {
					continue
				}
				_ = h.Release(ctx) // a failed one shows as a lease that nobody gets
				switch at := now(); {
				case at < w.From || at >= w.Until:
				case at < half:
					pairs[0].Add(1)
				default:
					pairs[1].Add(1)
				}
			}
		})
	}
	least := t.ttl()
	all.Go(func() {
		for ; now() < w.Until; time.Sleep(50 * time.Millisecond) {
			for _, l := range leases[1:] {
				least = min(least, time.Until(l.Deadline()))
			}
		}
	})
	sleepUntil(half)
	tx, err := db.BeginTx(ctx, nil)
	if err == nil {
		err = idempotency.ConfirmTx(ctx, tx, leases[0])
	}
	sleepUntil(w.Until)
	if tx != nil {
		err = errors.Join(err, tx.Rollback())
	}
	all.Wait()
	if err != nil {
		return measured{}, err
	}
	m := measured{Grants: pairs[1].Load(), Extra: map[string]float64{
		"throughput": float64(pairs[1].Load()) / float64(max(pairs[0].Load(), 1)),
		"left_ms":    least.Seconds() * 1000,
		"lost":       0,
	}}
	for _, l := range leases[1:] {
		if l.Err() != nil {
			m.Extra["lost"]++
		}
	}
	return m, nil
}
