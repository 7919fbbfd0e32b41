// Package doctest holds tests of the documents: blocks that quote files and commands are compared with them, links and named paths
// have to exist, tables of verbs and values are held against the program, and numbers against the results file.
package doctest
