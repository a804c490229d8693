// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tierlock/tierlock/idempotency"
	"github.com/tierlock/tierlock/internal/stack"
	"github.com/tierlock/tierlock/internal/tiers"
)

// TestKey_bytes_J10 has keys, and scopes, that only their bytes tell apart: each is a
// request of its own.
func TestKey_bytes_J10(t *testing.T) {
	long := strings.Repeat("k", 255)
	keys := []string{
		"pay", "PAY", "Pay", "pay ", " pay", "pay  ", "páy", "pa\u0301y", "pa\u0301y ", "straße", "strasse", "ﬁ", "fi", "pay\u00a0", "pay\u200b",
		"'; DROP TABLE stock; --", `pay\`, `pay\\`, "pay%", "pa_", "?", long, long[:254], long[:254] + "K", strings.Repeat("é", 127), strings.Repeat("é", 127) + "k", "😀", "\U0001F601",
	}
	onBothEngines(t, func(t *testing.T, s *shop) {
		s.guardTables(t)
		for _, dialect := range []string{"interpolateParams=true&collation=utf8mb4_general_ci", "interpolateParams=true&sql_mode=%27ANSI%2CNO_BACKSLASH_ESCAPES%27", "interpolateParams=true", ""}[:scaled(1, 4)] {
			g := s.newGuard(t, s.pool(t, tiers.WithParameters(s.business, dialect)))
			for what, request := range map[string]func(text string) idempotency.Request{
				"key": buy,
				"scope": func(text string) idempotency.Request {
					r := buy("order")
					r.Scope = text
					return r
				},
			} {
				for again := range 2 {
					for i, text := range keys {
						want := fmt.Sprint(what, " ", i)
						result, err := g.Once(t.Context(), nil, request(text), func(context.Context, *sql.Tx) ([]byte, error) { return []byte(want), nil })
						if err != nil || string(result.Body) != want || result.Replayed != (again == 1) {
							t.Errorf("%s %s %q: %q, replayed %v: %v; want %q", dialect, what, text, result.Body, result.Replayed, err, want)
						}
					}
				}
				s.completed(t, len(keys))
				s.Exec(t, "DELETE FROM idempotency")
			}
			for text, want := range map[string]error{
				long + "k": idempotency.ErrKeyTooLong, strings.Repeat("é", 128): idempotency.ErrKeyTooLong,
				"": idempotency.ErrKeyMissing, " \u00a0": idempotency.ErrKeyMissing,
				"a\x00b": idempotency.ErrKeyInvalid, "a\nb": idempotency.ErrKeyInvalid, "a\u0085b": idempotency.ErrKeyInvalid, "a\xffb": idempotency.ErrKeyInvalid,
			} {
				if _, err := g.Once(t.Context(), nil, buy(text), neverWrite(t)); !errors.Is(err, want) {
					t.Errorf("%s key %q: %v, want %v", dialect, text, err, want)
				}
			}
			s.completed(t, 0)
		}
	})
}

// bodies are answers that a driver might change on the way.
func bodies(n int) map[string][]byte {
	every := make([]byte, n)
	for i := range every {
		every[i] = byte(i)
	}
	return map[string][]byte{"zeros": make([]byte, n), "quotes": bytes.Repeat([]byte(`'`), n), "every byte": every}
}

// TestResult_size_J14 stores answers up to the limit byte by byte, and refuses one byte
// more without a trace and without a repeat. The limit is as high as the server lets it.
func TestResult_size_J14(t *testing.T) {
	const packet, margin = 2 << 20, 64 << 10
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := &shop{Tiers: tiers.On(t, stack.SharedRedis(t), stack.StartSQL(t, engine, fmt.Sprint("--max-allowed-packet=", packet)))}
			s.Exec(t, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL)")
			s.Exec(t, "INSERT INTO stock VALUES (1, 10)")
			s.proxy = stack.StartProxy(t, s.Database.Server())
			s.business = s.user(t, "b", "SELECT, INSERT, UPDATE, DELETE ON %s.stock")
			s.guardTables(t)
			for _, dialect := range []string{"", "interpolateParams=true", "interpolateParams=true&maxAllowedPacket=0"}[:scaled(2, 3)] {
				db := s.pool(t, tiers.WithParameters(s.business, dialect))
				for _, limit := range []int{1 << 20, packet - margin} {
					g := s.newGuard(t, db, idempotency.WithMaxResult(limit))
					if err := g.Check(t.Context()); err != nil {
						t.Errorf("check of %d: %v", limit, err)
					}
					for _, n := range []int{limit, 0, 1, limit - 1}[:scaled(2, 4)] {
						for content, body := range bodies(n) {
							what := fmt.Sprintf("%s %d of %d %s", dialect, n, limit, content)
							for again := range 2 {
								result, err := g.Once(t.Context(), nil, buy(what), func(context.Context, *sql.Tx) ([]byte, error) { return body, nil })
								if err != nil || !bytes.Equal(result.Body, body) || result.Replayed != (again == 1) {
									t.Errorf("%s: %d bytes, replayed %v: %v", what, len(result.Body), result.Replayed, err)
								}
							}
						}
					}
					s.Exec(t, "DELETE FROM idempotency")
					runs := 0
					_, err := g.Once(t.Context(), nil, buy("more"), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
						runs++
						_, err := sale(ctx, tx)
						return make([]byte, limit+1), err
					})
					if !errors.Is(err, idempotency.ErrResultTooLarge) || runs != 1 {
						t.Errorf("%s: %d bytes: %v after %d runs, want ErrResultTooLarge after one", dialect, limit+1, err, runs)
					}
					announced := buy("announced")
					announced.MaxResult = limit + 1
					if _, err := g.Once(t.Context(), nil, announced, neverWrite(t)); !errors.Is(err, idempotency.ErrResultTooLarge) {
						t.Errorf("%s: %d bytes announced: %v, want ErrResultTooLarge", dialect, limit+1, err)
					}
					s.unchanged(t)
				}
				for _, limit := range []int{packet - margin + 1, packet - 1, packet, packet + 1} {
					if err := s.newGuard(t, db, idempotency.WithMaxResult(limit)).Check(t.Context()); !errors.Is(err, idempotency.ErrOption) {
						t.Errorf("check of %d bytes in packets of %d: %v, want ErrOption", limit, packet, err)
					}
				}
			}
		})
	}
}

// TestResult_overPacket_J14 has answers that the guard would store and the server does
// not take, for Check was not asked: nothing of the write remains.
func TestResult_overPacket_J14(t *testing.T) {
	const packet = 2 << 20
	t.Parallel()
	for _, engine := range stack.Engines() {
		t.Run(engine.String(), func(t *testing.T) {
			t.Parallel()
			s := &shop{Tiers: tiers.On(t, stack.SharedRedis(t), stack.StartSQL(t, engine, fmt.Sprint("--max-allowed-packet=", packet)))}
			s.Exec(t, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL)")
			s.Exec(t, "INSERT INTO stock VALUES (1, 10)")
			s.proxy = stack.StartProxy(t, s.Database.Server())
			s.db = s.pool(t, s.user(t, "b", "SELECT, INSERT, UPDATE, DELETE ON %s.stock"))
			g := s.guard(t, idempotency.WithMaxResult(2*packet))
			for _, n := range []int{packet - 1, packet, packet + 1} {
				result, err := g.Once(t.Context(), nil, buy("order"), func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
					_, err := sale(ctx, tx)
					return make([]byte, n), err
				})
				if !errors.Is(err, idempotency.ErrResultTooLarge) {
					t.Errorf("%d bytes in packets of %d: %d stored: %v, want ErrResultTooLarge", n, packet, len(result.Body), err)
				}
				s.unchanged(t)
			}
		})
	}
}
