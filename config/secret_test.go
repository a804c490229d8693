// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.yaml.in/yaml/v3"

	"github.com/tierlock/tierlock/config"
)

func TestSecret_showsAllButThePassword(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                            "",
		"u:hunter2@tcp(db:3306)/lock": "u:***@tcp(db:3306)/lock",
		"u:hunter2@tcp(db:3306)/lock?tls=true&password=hunter2": "u:***@tcp(db:3306)/lock",
		"u:hun/t@er2:@tcp(db)/lock":                             "u:***@tcp(db:3306)/lock",
		"u@unix(/run/my.sock)/lock":                             "u@unix(/run/my.sock)/lock",
		"tcp(db)/lock":                                          "tcp(db:3306)/lock",
		"u:hun/ter2@tcp(db:3306)":                               "***", // the driver takes ter2@tcp(db:3306) for the database
		"u:hunter2@tcp(db:3306)":                                "***",
		"u:tcp/hunter2@tcp(db:3306)":                            "***",
		"tcp/hunter2@x":                                         "***",
		"hunter2":                                               "***",
		"u:hunter2(db:3306)/lock":                               "***", // without its @tcp, or its @
		"u:hunter2tcp(db:3306)/lock":                            "***",
		"hunter2tcp(db:3306)/lock":                              "***",
		"u:hunter2@tcp([::1]:3306)/lock":                        "u:***@tcp([::1]:3306)/lock",
		"tcp(u:hunter2:3306)/lock":                              "***",
		"u%3Ahunter2@tcp(db)/lock":                              "***",
		"redis://h:6379/1?password=hunter2":                     "redis://h:6379/1",
		"redis://u:hunter2@h:6379/1":                            "redis://u:***@h:6379/1",
		"rediss://:hunter2@h":                                   "rediss://***@h",
		"redis://hunter2@h":                                     "redis://***@h",
		"redis://hunter2:@h":                                    "redis://***@h",
		"redis://u:12/hunter2@h":                                "***",
		"redis://:12?hunter2@h":                                 "***",
		"redis://:12#hunter2@h":                                 "***",
		"redis://u:1@2/hunter2@h":                               "***",
		"redis://u:hunter2h:6379/0":                             "***", // without its @
		"redis://:hunter2:h:6379/0":                             "***",
		"redis://h:6379/hunter2":                                "***",
		"redis://u%3Ahunter2:x@h/0":                             "redis://***@h/0",
		"redis://u:hunter2@[::1]:6379/0":                        "redis://u:***@[::1]:6379/0",
		"redis://u:hunter2%zz@h":                                "***",
		"redis://u:hun%40ter2@h/0":                              "redis://u:***@h/0",
		"unix://u:hunter2@/run/redis.sock":                      "unix://u:***@/run/redis.sock",
		"unix:///run/redis.sock":                                "unix:///run/redis.sock",
	} {
		require.Equal(t, want, config.NewSecret(text).String(), text)
		require.Equal(t, text, config.NewSecret(text).Reveal())
	}
	require.Equal(t, config.Secret{}, config.NewSecret(""))
}

// TestSecret_isNowhere prints, logs and marshals a config in every way there is.
func TestSecret_isNowhere(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	c, err := parse("mysql: {dsn: \"u:${PW}@tcp(db:1)/lock\"}\nredis: {url: \"redis://u:${PW}@h/0\"}\n", "PW="+password)
	require.NoError(t, err)
	require.Contains(t, c.MySQL.DSN.Reveal(), password)
	require.Contains(t, c.Redis.URL.Reveal(), password)

	hidden := struct{ c config.Config }{c} // fmt asks no methods below an unexported field
	said := make(map[string]string)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%p", "%t", "% x", "%10v", "%e"} {
		for name, value := range map[string]any{
			"config": c, "pointer": &c, "hidden": hidden, "section": c.MySQL, "secret": c.MySQL.DSN,
			"secret's pointer": &c.Redis.URL, "list": []config.Secret{c.Redis.URL}, "map": map[string]any{"x": c},
		} {
			said[verb+" of a "+name] = fmt.Sprintf(verb, value)
		}
	}
	said["String"], said["GoString"] = c.Redis.URL.String(), c.MySQL.DSN.GoString()
	said["error"] = fmt.Errorf("connect to %v: %w", c.MySQL, errors.New("refused")).Error()

	encoded, err := json.Marshal(map[string]any{"c": c, "p": &c, "s": c.MySQL.DSN})
	require.NoError(t, err)
	said["json"] = string(encoded)
	encoded, err = yaml.Marshal(c)
	require.NoError(t, err)
	said["yaml"] = string(encoded)
	encoded, err = c.Redis.URL.MarshalText()
	require.NoError(t, err)
	said["text"] = string(encoded)

	var out bytes.Buffer
	for name, encoder := range map[string]zapcore.Encoder{
		"json":    zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()),
		"console": zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
	} {
		out.Reset()
		log := zap.New(zapcore.NewCore(encoder, zapcore.AddSync(&out), zap.DebugLevel))
		log.Info("x", zap.Any("c", c), zap.Any("p", &c), zap.Any("s", c.MySQL.DSN), zap.Stringer("u", c.Redis.URL), zap.Reflect("r", c))
		log.Sugar().Infow("x", "c", c, "s", c.MySQL.DSN)
		log.Sugar().Infof("%v", c)
		log.Sugar().Info(c, c.MySQL)
		said["zap "+name] = out.String()
	}
	for name, handler := range map[string]slog.Handler{"json": slog.NewJSONHandler(&out, nil), "text": slog.NewTextHandler(&out, nil)} {
		out.Reset()
		slog.New(handler).Info("x", "c", c, "p", &c, "s", c.MySQL.DSN)
		said["slog "+name] = out.String()
	}
	out.Reset()
	require.NoError(t, template.Must(template.New("").Parse("{{.}} {{.MySQL.DSN}} {{printf \"%s\" .Redis.URL}}")).Execute(&out, c))
	said["template"] = out.String()

	for how, what := range said {
		require.NotEmpty(t, what, how)
		require.NotContains(t, what, password, how)
		require.NotContains(t, strings.ToLower(what), fmt.Sprintf("%x", password), how)
	}
	require.Contains(t, said["json"], `"u:***@tcp(db:1)/lock"`)
	require.Contains(t, said["%v of a config"], "redis://u:***@h/0")
}

// Every error that can be had with a password in the file or the environment,
// also where one stands in a place that is none for it.
func TestSecret_isInNoError(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	for _, dsn := range []string{
		"u:" + password, "u:" + password + "@tcp(db:1)", "u:" + password + "@tcp(db:1)/", "u:" + password + "@tcp(db/x", "u:a/" + password + "@tcp(db:1)",
		"u:" + password + "@tcp(db:1)/lock", "redis://u:" + password + "@h", "redis://u:1/" + password + "@h", "http://u:" + password + "@h",
		"redis://" + password + "@", password + "@", "//u:" + password + "@h",
		"u:" + password + "tcp(db:1)/lock", "u:" + password + "(db:1)/lock", "redis://u:" + password + "h:1/0", "redis://h/" + password, "redis://h?x=" + password,
	} {
		for _, where := range []string{
			"mysql: {dsn: %q, timeout: 1}", "mysql: {dsn: [%q]}", "mysql: {dsn: {x: %q}}", "mysql: {dsn: !x %q}", "mysql: {dns: %q}", "mysql: {%q: 1}", "mysql: %q", "mysql: [%q]",
			"redis: {url: %q, timeout: 1}", "redis: {timeout: %q}", "mysql: {timeout: %q}", "redis: {ulr: %q}", "redis: %q", "policies: %q", "policies: [%q]", "%q", "[%q]", "dsn: %q", "mysql: {dsn: %q",
			"mysql: {dsn: %[1]q, dsn: %[1]q}", "mysql: {dsn: %q} x",
		} {
			_, err := parse(fmt.Sprintf(where, dsn))
			require.Error(t, err, where)
			require.NotContains(t, err.Error(), password, where)
		}
		for _, name := range []string{"TIERLOCK_MYSQL_DSN", "TIERLOCK_REDIS_URL", "TIERLOCK_MYSQL_DSM", "PW"} {
			_, err := parse("drain: -1s\nmysql: {dsn: \"${PW}\"}\nredis: {url: \"x${PW}\"}\npolicies: [{match: \"${PW}/**\"}, {match: \"${PW}/a\", tiers: \"${PW}\", degrade: [\"${PW}\"], ttl: \"${PW}\"}]\n", "PW="+dsn, name+"="+dsn)
			require.Error(t, err, name)
			require.NotContains(t, err.Error(), password, name)
		}
	}
}
