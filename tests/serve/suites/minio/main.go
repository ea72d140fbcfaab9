// SPDX-License-Identifier: Apache-2.0

// Runs minio-go's functional tests by name, a line of JSON for each: {"name", "error"}. They are one program, whose main runs all of them and ends with
// the first that fails: lib_suites.py puts it beside this file, its main renamed, with a list of its tests.
//
//	minio NAME...      SERVER_ENDPOINT, ACCESS_KEY, SECRET_KEY, ENABLE_HTTPS, MINT_MODE
//	minio              names of all tests
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
)

type result struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// What is wrong, or "". The tests say it in their log, and by a panic.
func run(test func()) (what string) {
	var log bytes.Buffer
	slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
	defer func() {
		p := recover()
		for _, line := range strings.Split(log.String(), "\n") {
			var said struct{ Status, Alert, Message, Error string }
			if json.Unmarshal([]byte(line), &said) == nil && (said.Status == "FAIL" || said.Status == "NA") {
				what += strings.Join([]string{said.Status, said.Alert, said.Message, said.Error}, " ") + "; "
			}
		}
		if p != nil && what == "" {
			what = fmt.Sprint("panic: ", p)
		}
	}()
	if test == nil {
		return "no such test"
	}
	test()
	return ""
}

func main() {
	if len(os.Args) < 2 {
		var names []string
		for name := range suite {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Println(strings.Join(names, "\n"))
		return
	}
	out := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // what the suite prints
	for _, name := range os.Args[1:] {
		if err := out.Encode(result{name, run(suite[name])}); err != nil {
			os.Exit(1)
		}
	}
}
